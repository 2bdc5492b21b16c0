"""A tiny real model with a tiny real world, for tests: everything through the production code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlmrl.config.schema import ToyWorldSection
from vlmrl.data.encode import ANSWER_FORMATS, Encoder, instruction
from vlmrl.data.source import load_source
from vlmrl.extras.toy.model import ModelFamily, build_model
from vlmrl.extras.toy.tasks import tokenizer_corpus
from vlmrl.extras.toy.world import make_world
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.vision import VisionCache
from vlmrl.types import Prompt, Sample

MEDIA = MediaSettings(
    min_pixels=56 * 56,
    max_pixels=56 * 84,
    video_total_pixels=None,
    fps=2.0,
    min_frames=4,
    max_frames=32,
    cache_bytes=2**28,
    decoder="auto",
)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A loaded tiny policy with its data."""

    policy: Policy
    bundle: ProcessorBundle
    store: MediaStore
    encoder: Encoder
    vision: VisionCache
    samples: list[Sample]

    def prompts(self, count: int, answer_format: str = "think_or_not") -> list[Prompt]:
        return [self.encoder.encode(sample, answer_format) for sample in self.samples[:count]]


def make_files(folder: Path, *, sft: int = 24, train: int = 50, test: int = 12, family: ModelFamily = "qwen2_5_vl") -> tuple[Path, Path]:
    """(model folder, world folder), built from seed 0."""
    model, world = folder / "model", folder / "world"
    make_world(world, ToyWorldSection(pretrain=2, sft=sft, train=train, validation=2, test=test))
    build_model(model, seed=0, corpus=tokenizer_corpus([instruction(t, "time_span") for t in ANSWER_FORMATS]), family=family)
    return model, world


def load(model: Path, world: Path, split: str = "train") -> Tiny:
    """Open what `make_files` made."""
    bundle = load_processor(str(model))
    store = MediaStore.of(MEDIA, bundle)
    encoder = Encoder.of(bundle, store, world, max_prompt_tokens=4096)
    samples = load_source(world / f"{split}.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    policy = load_policy(str(model), bundle, device="cpu")
    return Tiny(policy=policy, bundle=bundle, store=store, encoder=encoder, vision=VisionCache(store, budget_bytes=2**28), samples=samples)
