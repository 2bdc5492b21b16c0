"""The rehearsal of a rollout: the memory of answers that are all as long as they may be, in a few tokens, and nothing is left of it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.support import cases, runs
from tests.support.saved_bytes import Live
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.errors import NumericsError
from vlmrl.rollout.engine_fixed import FixedEngine
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.rollout.grid import GROW
from vlmrl.run.start import Places, train_from
from vlmrl.run.ui import Ui
from vlmrl.train import pipeline
from vlmrl.types import GenerationSettings, Prompt, Request

LONG = 3 * GROW
ENGINES: list[type[HFEngine]] = [HFEngine, FixedEngine]


def request(prompt: Prompt, n: int) -> Request:
    return Request(prompt=prompt, ks=tuple(range(n)), seeds=tuple(rng.key(0, prompt.sample.id, k) for k in range(n)))


def most(work: Callable[[], object]) -> int:
    """Most bytes of storages that the work makes and holds at a time."""
    with (live := Live()):
        work()
    return live.most


@pytest.mark.parametrize("make", cases.some(ENGINES, {FixedEngine}))
def test_it_takes_what_answers_of_full_length_take(tiny: Tiny, make: type[HFEngine]) -> None:
    endless = copy.copy(tiny.policy)
    endless.bundle = dataclasses.replace(tiny.bundle, end_ids=(10**6,))
    requests = [request(prompt, 3) for prompt in tiny.prompts(4)]
    settings = GenerationSettings(max_new_tokens=LONG)
    engine = make(endless, tiny.vision, max_num_seqs=6)  # two prompts at a time
    engine.generate(requests, GenerationSettings(max_new_tokens=2))  # features of all prompts are cached from here on
    steps, decoded = engine.decoded_steps, list[int]()
    rehearsed = most(lambda: engine.rehearse(requests, settings))
    assert engine.decoded_steps == steps
    answered = most(lambda: decoded.extend(len(r.ids) for group in engine.generate(requests, settings) for r in group))
    assert set(decoded) == {LONG}
    assert rehearsed == pytest.approx(answered, rel=0.05)
    short = most(lambda: engine.generate(requests, GenerationSettings(max_new_tokens=GROW // 2)))
    assert short < 0.8 * rehearsed


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("length", [1, GROW + 1])
def test_nothing_of_it_is_left(tiny: Tiny, make: type[HFEngine], length: int) -> None:
    requests, settings = [request(prompt, 2) for prompt in tiny.prompts(3)], GenerationSettings(max_new_tokens=length)
    expected = make(tiny.policy, tiny.vision).generate(requests, settings)
    engine = make(tiny.policy, tiny.vision)
    counts = {name: read() for name, read in engine.counts.items()}
    engine.rehearse(requests, settings)
    assert {name: read() for name, read in engine.counts.items()} == counts
    assert engine.generate(requests, settings) == expected


def test_too_little_memory_says_what_to_change(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = HFEngine(tiny.policy, tiny.vision)
    asked = [request(prompt, 4) for prompt in tiny.prompts(2)]
    collection = cast(Any, SimpleNamespace(largest=lambda: asked, collector=SimpleNamespace(settings=GenerationSettings(max_new_tokens=7))))

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine, "rehearse", full)
    longest = r"8 answers to 2 prompts are all as long as rollout\.max_new_tokens \(7\)"
    with pytest.raises(NumericsError, match=rf"{longest}.*train\.rehearse: false"):
        pipeline.rehearse(engine, collection)
    asked.clear()
    pipeline.rehearse(engine, collection)  # all of it is in the journal


def test_a_stage_begins_with_one(tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sampled, once, with the prompts of its first step; not where the recipe says so."""
    seen: list[int] = []
    monkeypatch.setattr(HFEngine, "rehearse", lambda engine, requests, settings: seen.append(len(requests)))
    for rehearse in (True, False):
        made = runs.small_config(*tiny_files, tmp_path / str(rehearse)) | {"train": {"rehearse": rehearse}, "eval": {}}
        config = Config.model_validate(made | {"stages": [made["stages"][1]]})
        train_from(loaded(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
        assert len(seen) == 1
