"""rollout.collect: chunks are replayed or generated as a whole, and a crash loses none that is complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import group, sample
from vlmrl import faults
from vlmrl.rewards.format import format_reward
from vlmrl.rewards.runner import RewardContext, RewardRunner
from vlmrl.rollout.collect import Collector
from vlmrl.rollout.journal import Journal
from vlmrl.rollout.strategy.offpolicy_gt import offpolicy_gt
from vlmrl.rollout.strategy.plain import plain
from vlmrl.types import GenerationSettings, Rollout

SETTINGS = GenerationSettings(max_new_tokens=8)


class Engine:
    """Answers with its seed; counts its calls."""

    version = 3

    def __init__(self):
        self.asked: list[list[str]] = []

    def generate(self, requests, settings, done=None):
        assert settings is SETTINGS
        self.asked.append([r.prompt.sample.id for r in requests])
        out = [[self.one(k, seed) for k, seed in zip(r.ks, r.seeds, strict=True)] for r in requests]
        for number in reversed(range(len(out))):  # engines report in the order in which answers end
            done(number, out[number])
        return out

    def one(self, k, seed):
        text = f"<answer>{seed}</answer>"
        return Rollout(k=k, ids=(seed % 97,), logprobs=(-0.1 * k - 1e-17,), text=text, finish="stop", policy_version=self.version)

    def close(self):
        pass


def collector(engine, strategy=None, **more):
    runner = RewardRunner([("format", 1.0, format_reward)])
    return Collector(
        engine=engine,
        strategy=strategy or plain(),
        score=lambda g: runner.score(g, RewardContext()),
        tokenize=lambda text: [ord(c) for c in text],
        settings=SETTINGS,
        **{"per_prompt": 3, "chunk_prompts": 2, "seed": 1, "stage": "rl", **more},
    )


PROMPTS = [(i, group([], sample(id=name), "answer_only").prompt) for i, name in enumerate("abcde")]


@pytest.mark.parametrize("done", [1, 2, 3])
def test_after_a_crash_only_missing_chunks_are_generated(tmp_path: Path, monkeypatch, done):
    whole = collector(Engine()).collect(PROMPTS, step=4, journal=Journal(tmp_path / "whole", 4))
    faults._passed.clear()
    monkeypatch.setenv("VLMRL_FAULT", f"rollout.chunk@{done}:raise")
    with pytest.raises(faults.InjectedFault):
        collector(Engine()).collect(PROMPTS, step=4, journal=Journal(tmp_path / "j", 4))
    monkeypatch.delenv("VLMRL_FAULT")
    engine = Engine()
    out = collector(engine).collect(PROMPTS, step=4, journal=Journal(tmp_path / "j", 4))
    assert engine.asked == [["a", "b"], ["c", "d"], ["e"]][done:]
    assert out.replayed == min(2 * done, 5)
    assert out.groups == whole.groups
    assert [r["group"] for r in Journal(tmp_path / "j", 4).replay()] == [g.group.id for g in whole.groups]


def test_a_chunk_that_is_half_in_the_journal_is_generated_whole_and_written_once(tmp_path: Path):
    whole = collector(Engine()).collect(PROMPTS, step=4, journal=Journal(tmp_path / "whole", 4))
    half = Journal(tmp_path / "half", 4)
    half.append(Journal(tmp_path / "whole", 4).replay()[0])
    engine = Engine()
    out = collector(engine).collect(PROMPTS, step=4, journal=half)
    assert engine.asked[0] == ["a", "b"]
    assert out.groups == whole.groups
    assert [r["sample"] for r in half.replay()] == list("abcde")


def test_seeds_depend_on_step_stage_place_sample_and_k_only(tmp_path: Path):
    def texts(name: str, prompts=PROMPTS, step=4, **more):
        groups = collector(Engine(), **more).collect(prompts, step=step, journal=Journal(tmp_path / name, step)).groups
        return [r.text for g in groups for r in g.group.rollouts]

    base = texts("base")
    assert len(set(base)) == 15
    assert texts("chunks", chunk_prompts=5) == base
    assert texts("part", prompts=PROMPTS[2:]) == base[6:]
    for i, more in enumerate(({"step": 5}, {"stage": "sft"}, {"seed": 2})):
        assert not set(texts(f"other{i}", **more)) & set(base)
    twice = texts("twice", prompts=[(0, PROMPTS[0][1]), (1, replace(PROMPTS[0][1]))])
    assert len(set(twice)) == 6


def test_ground_truth_rows_are_journalled_and_replayed(tmp_path: Path):
    first = collector(Engine(), offpolicy_gt()).collect(PROMPTS, step=0, journal=Journal(tmp_path, 0))
    engine = Engine()
    again = collector(engine, offpolicy_gt()).collect(PROMPTS, step=0, journal=Journal(tmp_path, 0))
    assert engine.asked == []
    assert again.groups == first.groups
    assert [r.provenance for r in again.groups[0].group.rollouts] == ["policy", "policy", "ground_truth"]
