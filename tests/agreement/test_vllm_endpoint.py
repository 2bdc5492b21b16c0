"""A model served by a real vLLM answers as our own engine does: same pixels, same prompt tokens, same greedy answers.

Set `VLMRL_VLLM_PYTHON` to the interpreter of an environment with vLLM (its CPU build is enough).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.vllm_server import VllmServer, find_python, vllm_server
from vlmrl.data.encode import Encoder
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError, RemoteError
from vlmrl.evals.ask.engines import Generation, LocalEngine
from vlmrl.extras.judges.endpoint import EndpointEngine
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.extras.toy.multitask import items
from vlmrl.extras.toy.picture import png
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt

PYTHON = find_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="no vLLM here; VLMRL_VLLM_PYTHON names an interpreter that has it"),
]

PICTURES, VIDEOS = 12, 4
GREEDY = GenerationSettings(max_new_tokens=24, temperature=0.0)
SAMPLED = GenerationSettings(max_new_tokens=12, temperature=1.0)
SMALL = dataclasses.replace(tiny.MEDIA, min_pixels=28 * 28, max_pixels=2 * 28 * 28)
"""Below the least pixels of the served processor (56 * 56), so that it enlarges what is not kept from it."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A checkpoint with pictures and videos, and the server that has it."""

    server: VllmServer
    folder: Path
    model: Path
    policy: Policy

    def prompts(self, file: str, media: MediaSettings) -> tuple[list[Prompt], MediaStore]:
        bundle = self.policy.bundle
        store = MediaStore.of(media, bundle)
        encoder = Encoder.of(bundle, store, self.folder, max_prompt_tokens=2000)
        samples = load_source(self.folder / file, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
        return [encoder.encode(sample, "think_or_not") for sample in samples], store

    def local(self, store: MediaStore) -> LocalEngine:
        return LocalEngine(HFEngine(self.policy, VisionCache(store, budget_bytes=2**28)), fingerprint="w")

    def remote(self, store: MediaStore, **options) -> EndpointEngine:
        options = {"label": "seed 0", "forbidden_ids": self.policy.bundle.forbidden_ids, **options}
        endpoint = {"url": self.server.url, "model": "tiny", "timeout": 300.0, "max_wait": 60.0}
        return EndpointEngine(endpoint, media=store, **options)


@pytest.fixture(scope="module", params=[("qwen2_5_vl", False), ("qwen3_vl", True)], ids=["qwen2_5_vl", "qwen3_vl, by vlmrl serve"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    family: ModelFamily
    family, ours = request.param
    folder = tmp_path_factory.mktemp(family)
    model, data = tiny.make_files(folder, sft=1, train=VIDEOS, test=1, family=family)
    (data / "images" / "train").mkdir(parents=True)
    rows = [item for index in range(PICTURES) for item in items(0, "train", index)]
    for item in rows:
        (data / item.row["image"]).write_bytes(png(item.pixels))
    (data / "pictures.jsonl").write_text("".join(json.dumps(item.row) + "\n" for item in rows))
    policy = load_policy(str(model), load_processor(str(model)), device="cpu", positions="max")
    assert PYTHON is not None
    options = ["--answer-type", "time_span", "--max-prompt-tokens", "2000"] if ours else ["--trust-request-mm-kwargs"]
    with vllm_server(model, python=PYTHON, served_name="tiny", folder=folder / "log", options=options, ours=ours) as server:
        yield World(server=server, folder=data, model=model, policy=policy)


def compared(world: World, file: str, media: MediaSettings) -> list[tuple[Generation, Generation]]:
    """Greedy answers (ours, the server's)."""
    prompts, store = world.prompts(file, media)
    remote = world.remote(store)
    theirs = remote.generate(prompts, GREEDY, samples=1, seed=0)
    remote.close()
    ours = world.local(store).generate(prompts, GREEDY, samples=1, seed=0)
    pairs = [(whole(a[0]), whole(b[0])) for a, b in zip(ours, theirs, strict=True)]
    same = sum(a == b for a, b in pairs)
    print(f"{world.model.parent.name} {file}, pixels up to {media.max_pixels}: {same} of {len(pairs)} greedy answers equal")
    for a, b in pairs:
        if a != b:
            print(f"  ours   {a}\n  vLLM's {b}")
    return pairs


def whole(answer: Generation) -> Generation:
    """Without a character at the end that was begun only: we show a replacement character for it, vLLM nothing."""
    return dataclasses.replace(answer, text=answer.text.rstrip("\N{REPLACEMENT CHARACTER}"))


@pytest.mark.parametrize("media", [tiny.MEDIA, SMALL], ids=["usual", "small"])
def test_greedy_answers_to_pictures_are_ours(world: World, media: MediaSettings):
    pairs = compared(world, "pictures.jsonl", media)
    assert len(pairs) == PICTURES
    assert len({a.text for a, _ in pairs}) > 1, "every picture has the same answer, so this shows nothing"
    assert sum(a == b for a, b in pairs) >= 0.9 * PICTURES


def test_greedy_answers_to_videos_are_ours(world: World):
    pairs = compared(world, "train.jsonl", tiny.MEDIA)
    assert len(pairs) == VIDEOS
    assert sum(a == b for a, b in pairs) >= VIDEOS - 1


def test_sampled_answers_repeat_and_differ(world: World):
    prompts, store = world.prompts("pictures.jsonl", tiny.MEDIA)
    remote = world.remote(store)
    first = remote.generate(prompts[:2], SAMPLED, samples=3, seed=1)
    again = remote.generate(prompts[:2], SAMPLED, samples=3, seed=1)
    other = remote.generate(prompts[:2], SAMPLED, samples=3, seed=2)
    remote.close()
    assert first == again
    assert first != other
    assert all(len({one.text for one in answers}) == 3 and all(1 <= one.n_out <= 12 for one in answers) for answers in first)


def test_a_processor_that_resizes_is_found_by_its_tokens(world: World):
    prompts, store = world.prompts("pictures.jsonl", SMALL)
    remote = world.remote(store, media_arguments=False)
    with pytest.raises(ConfigError, match=f"prompt tokens, we count {len(prompts[0].ids)}, .*sees other pixels"):
        remote.generate(prompts[:1], GREEDY, samples=1, seed=0)
    remote.close()


def test_a_prompt_that_does_not_fit_is_an_error_with_its_row(world: World):
    prompts, store = world.prompts("pictures.jsonl", tiny.MEDIA)
    remote = world.remote(store)
    with pytest.raises(RemoteError, match=f"row '{prompts[0].sample.id}'.*http_400"):
        remote.generate(prompts[:1], dataclasses.replace(GREEDY, max_new_tokens=4096), samples=1, seed=0)
    remote.close()


def test_fingerprint_of_a_real_server(world: World):
    _, store = world.prompts("pictures.jsonl", tiny.MEDIA)
    prints = []
    for label in ("seed 0", "seed 0", "seed 1"):
        remote = world.remote(store, label=label)
        prints.append(remote.fingerprint)
        remote.close()
    assert prints[0] == prints[1] != prints[2]
