"""Engines of an evaluation: what they ask, in which order answers come back, and what a missing answer does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import sample
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.ask.engines import EvalEngine, Generation, LocalEngine, ReplayEngine, answer_seed
from vlmrl.evals.ask.models import LocalModel, compute_dtype
from vlmrl.evals.score.records import Record, Think, sample_hash, settings_json
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

GREEDY = GenerationSettings(max_new_tokens=8, temperature=0.0)
SAMPLED = GenerationSettings(max_new_tokens=8, temperature=0.7, top_p=0.9)


class Echo:
    """A rollout engine whose answers name their seed; every other one is cut off."""

    version = 3

    def __init__(self) -> None:
        self.calls: list[tuple[list[Request], GenerationSettings]] = []

    def generate(self, requests: Sequence[Request], settings: GenerationSettings, done: Any = None) -> list[list[Rollout]]:
        self.calls.append((list(requests), settings))
        return [[self.rollout(k, seed) for k, seed in zip(r.ks, r.seeds, strict=True)] for r in requests]

    @staticmethod
    def rollout(k: int, seed: int) -> Rollout:
        finish = "length" if k % 2 else "stop"
        return Rollout(k=k, ids=(7,) * (k + 1), logprobs=(-1.0,) * (k + 1), text=str(seed), finish=finish, policy_version=3)

    def close(self) -> None:
        pass


def prompts(*names: str) -> list[Prompt]:
    return [Prompt(sample=sample(id=name), ids=(1, 2, 3), media=(), spans=(), answer_format="think") for name in names]


def record(prompt: Prompt, text: str, *, k: int = 0, seed: int | None = 5, fingerprint: str = "w") -> Record:
    return Record(
        model="rl",
        sample_id=prompt.sample.id,
        task="t",
        cluster="c",
        sample_hash=sample_hash(prompt),
        prompt_ids_hash="p",
        answer_format="think",
        answer_type="time_span",
        text=text,
        answer=None,
        status="no_tag",
        format_ok=False,
        pred=None,
        gold=(3.0, 5.0),
        scores={"tiou": 0.0},
        think=Think(has=False, tokens=0),
        n_in=3,
        n_out=len(text),
        finish="stop",
        unclosed=False,
        fingerprint=fingerprint,
        settings=settings_json(GREEDY if seed is None else SAMPLED),
        k=k,
        seed=seed,
    )


def write(path: Path, records: Sequence[Record]) -> Path:
    path.write_bytes(b"".join(one.line() for one in records))
    return path


def test_local_engine_keeps_order_and_counts_tokens():
    inner = Echo()
    engine: EvalEngine = LocalEngine(inner, fingerprint="weights")
    out = engine.generate(prompts("b", "a"), SAMPLED, samples=2, seed=11)
    assert engine.fingerprint == "weights"
    assert out == [
        [
            Generation(text=str(rng.key(11, "eval", name, 0)), n_out=1, finish="stop"),
            Generation(text=str(rng.key(11, "eval", name, 1)), n_out=2, finish="length"),
        ]
        for name in ("b", "a")
    ]
    (requests, settings) = inner.calls[0]
    assert len(inner.calls) == 1
    assert settings == SAMPLED
    assert [r.ks for r in requests] == [(0, 1), (0, 1)]


def test_an_answer_does_not_depend_on_what_else_is_asked():
    few = LocalEngine(Echo(), fingerprint="w").generate(prompts("a"), SAMPLED, samples=2, seed=1)
    many = LocalEngine(Echo(), fingerprint="w").generate(prompts("c", "a", "b"), SAMPLED, samples=4, seed=1)
    assert many[1][:2] == few[0]


@given(st.integers(0, 2**40), st.text(max_size=8), st.integers(0, 50))
def test_seeds_are_those_of_the_coordinates_and_not_those_of_training(seed: int, name: str, k: int):
    assert answer_seed(seed, name, k) == rng.key(seed, "eval", name, k)
    assert 0 <= answer_seed(seed, name, k) < 2**63
    others = {answer_seed(seed + 1, name, k), answer_seed(seed, name + "x", k), answer_seed(seed, name, k + 1)}
    others.add(rng.key(seed, "rollout", name, k))
    assert answer_seed(seed, name, k) not in others


@pytest.mark.parametrize("samples", [0, -1])
def test_at_least_one_answer(samples: int):
    asked = prompts("a")
    replay = ReplayEngine([record(asked[0], "x")], where="here")
    for engine in (LocalEngine(Echo(), fingerprint="w"), replay):
        with pytest.raises(ValueError, match="at least 1"):
            engine.generate(asked, SAMPLED, samples=samples, seed=0)


def test_replay_answers_as_the_engine_that_was_asked():
    (asked,) = prompts("a")
    plain = record(asked, "x")
    theirs = dataclasses.replace(plain, settings={**plain.settings, "engine": "vllm"})
    engine = ReplayEngine([theirs], where="here")
    assert engine.engine_name == "vllm"
    assert engine.generate([asked], SAMPLED, samples=1, seed=5)[0][0].text == "x"
    assert ReplayEngine([plain], where="here").engine_name == "hf"
    with pytest.raises(ConfigError, match=r"here: answers of several engines \(hf, vllm\)"):
        ReplayEngine([theirs, dataclasses.replace(plain, k=1)], where="here")


def test_no_prompts_no_answers():
    assert LocalEngine(Echo(), fingerprint="w").generate([], SAMPLED, samples=1, seed=0) == []


def test_replay_finds_answers_by_sample_and_number(tmp_path: Path):
    a, b = prompts("a", "b")
    first = write(tmp_path / "0.jsonl", [record(a, "a1", k=1), record(b, "b0-")])
    second = write(tmp_path / "1.jsonl", [record(b, "b1", k=1), record(a, "a0")])
    engine: EvalEngine = ReplayEngine.of_files([first, second])
    assert engine.fingerprint == "w"
    assert engine.generate([b, a], SAMPLED, samples=2, seed=5) == [
        [Generation(text="b0-", n_out=3, finish="stop"), Generation(text="b1", n_out=2, finish="stop")],
        [Generation(text="a0", n_out=2, finish="stop"), Generation(text="a1", n_out=2, finish="stop")],
    ]


def test_replay_says_which_answer_is_missing(tmp_path: Path):
    a, b = prompts("a", "b")
    engine = ReplayEngine.of_files([write(tmp_path / "r.jsonl", [record(a, "x")])])
    with pytest.raises(StorageError, match=r"r\.jsonl: no answer 1 to sample 'a'"):
        engine.generate([a], SAMPLED, samples=2, seed=5)
    with pytest.raises(StorageError, match=r"no answer 0 to sample 'b'"):
        engine.generate([a, b], SAMPLED, samples=1, seed=5)


def test_replay_refuses_answers_to_something_else(tmp_path: Path):
    a = prompts("a")[0]
    engine = ReplayEngine.of_files([write(tmp_path / "r.jsonl", [record(a, "x")])])
    changed = dataclasses.replace(a, sample=dataclasses.replace(a.sample, question="Where?"))
    with pytest.raises(ConfigError, match="another question"):
        engine.generate([changed], SAMPLED, samples=1, seed=5)
    with pytest.raises(ConfigError, match=r"'top_p': 0\.9.*asked for is.*'top_p': 1\.0"):
        engine.generate([a], dataclasses.replace(SAMPLED, top_p=1.0), samples=1, seed=5)
    with pytest.raises(ConfigError, match=r"and seed 5, asked for is .* and seed 6"):
        engine.generate([a], SAMPLED, samples=1, seed=6)


def test_replay_of_greedy_answers_takes_any_seed():
    a = prompts("a")[0]
    engine = ReplayEngine([record(a, "x", seed=None)], where="here")
    assert engine.generate([a], GREEDY, samples=1, seed=1) == engine.generate([a], GREEDY, samples=1, seed=2)
    with pytest.raises(ConfigError, match=r"seed None, asked for is .* and seed 1"):
        engine.generate([a], SAMPLED, samples=1, seed=1)


def test_replay_needs_the_records_of_one_evaluation(tmp_path: Path):
    a, b = prompts("a", "b")
    both = write(tmp_path / "r.jsonl", [record(a, "x", fingerprint="old"), record(b, "y", fingerprint="new")])
    with pytest.raises(ConfigError, match=r"2 models \(new, old\)"):
        ReplayEngine.of_files([both])
    with pytest.raises(ConfigError, match=r"two records of answer 0 to sample 'a'"):
        ReplayEngine.of_files([both, both])
    with pytest.raises(ConfigError, match="no records"):
        ReplayEngine.of_files([write(tmp_path / "empty.jsonl", [])])
    with pytest.raises(StorageError, match="no evaluation records"):
        ReplayEngine.of_files([tmp_path / "absent.jsonl"])


def test_the_reference_engine_answers_the_same_in_any_order(tiny: Tiny):
    engine = LocalEngine(HFEngine(tiny.policy, tiny.vision), fingerprint="w")
    asked = tiny.prompts(3)
    settings = GenerationSettings(max_new_tokens=6, temperature=1.0)
    there = engine.generate(asked, settings, samples=2, seed=4)
    back = engine.generate(asked[::-1], settings, samples=2, seed=4)
    assert there == back[::-1]
    assert all(1 <= one.n_out <= 6 for answers in there for one in answers)
    assert len({one.text for answers in there for one in answers}) > 1


@pytest.mark.parametrize(
    ("device", "dtype", "gpu", "expected"),
    [
        ("auto", "auto", True, "bfloat16"),
        ("auto", "auto", False, "float32"),
        ("cpu", "auto", True, "float32"),
        ("cuda", "float32", True, "float32"),
        ("cpu", "bfloat16", False, "bfloat16"),
    ],
)
def test_the_compute_type_follows_the_device(monkeypatch: pytest.MonkeyPatch, device: str, dtype: str, gpu: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: gpu)
    assert compute_dtype(device, dtype) == expected


def test_answers_in_another_compute_type_are_other_answers(tiny_files: tuple[Path, Path]) -> None:
    model, _ = tiny_files
    plain, half = (LocalModel.load(model, device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert plain.fingerprint == LocalModel.load(model, device="cpu").fingerprint
    assert half.fingerprint != plain.fingerprint
