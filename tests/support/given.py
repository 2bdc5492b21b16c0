"""Tiny models of any family with a tiny world of pictures and clips, opened as training opens them (`model.family: generic`)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tests.support.tiny import Tiny
from vlmrl.config.schema import ToyWorldSection
from vlmrl.data.encode import Encoder
from vlmrl.data.source import load_source
from vlmrl.extras.families.tiny import write_tiny
from vlmrl.extras.toy.kinds import make_world
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.vision import VisionCache
from vlmrl.types import Prompt

MEDIA = MediaSettings(
    min_pixels=3136,
    max_pixels=9216,
    video_total_pixels=None,
    fps=1.0,
    min_frames=4,
    max_frames=6,
    cache_bytes=2**28,
    decoder="auto",
)


def make_rows(folder: Path, *, video: bool, train: int = 8, test: int = 2) -> Path:
    """A folder with `train.jsonl` and `test.jsonl`: questions about pictures, and with `video` as many about clips between them."""
    kinds = {"pictures": "spatial"} | ({"clips": "grounding"} if video else {})
    for name, kind in kinds.items():
        make_world(folder / name, ToyWorldSection.model_validate({"kind": kind, "pretrain": 1, "sft": 1, "train": train, "test": test}))
    for split in ("train", "test"):
        of_kind = [[_placed(line, name) for line in (folder / name / f"{split}.jsonl").read_text().splitlines()] for name in kinds]
        rows = [row for together in zip(*of_kind, strict=False) for row in together]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _placed(line: str, name: str) -> dict[str, object]:
    row = json.loads(line)
    for key in ("image", "video"):
        if key in row:
            row[key] = f"{name}/{row[key]}"
    return row


def make_model(name: str, folder: Path, *, head: int | None = None) -> Path:
    """A folder with a tiny model of a configuration. `head`: dimensions of its decoder's heads, for engines that ask for some."""
    from tests.support import numerals  # noqa: F401 (for SmolVLM)

    write_tiny(name, folder, head=head)
    return folder


def layouts(loaded: Tiny, *, video: bool) -> dict[str, Prompt]:
    """A prompt of each layout that a family has to get right, of rows that `make_rows` has made: by name, as `media_layouts.prompts`."""
    pictures = [sample.media[0] for sample in loaded.samples if sample.media[0].kind == "image"]
    media = {"text": (), "image": pictures[:1], "images": pictures[:2]}
    if video:
        clips = [sample.media[0] for sample in loaded.samples if sample.media[0].kind == "video"]
        media |= {"video": clips[:1], "videos": clips[:2], "mixed": [pictures[0], clips[0]]}
    first = loaded.samples[0]
    return {
        name: loaded.encoder.encode(dataclasses.replace(first, id=name, media=tuple(shown)), "answer_only") for name, shown in media.items()
    }


def load_given(model: Path, world: Path, *, split: str = "train") -> Tiny:
    """Open both."""
    bundle = load_processor(str(model), family="generic")
    store = MediaStore.of(MEDIA, bundle)
    encoder = Encoder.of(bundle, store, world, max_prompt_tokens=4096)
    samples = load_source(world / f"{split}.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    policy = load_policy(str(model), bundle, device="cpu")
    return Tiny(policy=policy, bundle=bundle, store=store, encoder=encoder, vision=VisionCache(store, budget_bytes=2**28), samples=samples)
