"""rollout.collect and rollout.guide: batches are replayed or generated as a whole, and a crash loses none that is complete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.builders import group, sample
from tests.support.tiny import Tiny
from vlmrl import faults, rng
from vlmrl.answers.tags import FREE
from vlmrl.errors import CheckpointError, RowError
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import Row
from vlmrl.rewards.format import format_reward
from vlmrl.rewards.run.runner import RewardContext, RewardRunner
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.rollout.guide import GuidedCollector, collector_for
from vlmrl.rollout.journal import Journal, sampled_record, scored_record
from vlmrl.rollout.strategy.hint import guide, sage, scaf_grpo
from vlmrl.rollout.strategy.offpolicy_gt import offpolicy_gt
from vlmrl.rollout.strategy.plain import plain
from vlmrl.types import GenerationSettings, Group, HintRequest, HintRound, MediaHandle, MediaRef, Prompt, Rollout, Sample

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
    settings = {
        "score": lambda g, step: runner.score(g, RewardContext()),
        "num_generations": 3,
        "generation_batch_size": 2,
        "seed": 1,
        "stage": "rl",
    }
    strategy = strategy or plain()
    make = collector_for(strategy, encode)
    return make(engine=engine, strategy=strategy, tokenize=lambda text: [ord(c) for c in text], settings=SETTINGS, **(settings | more))


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
    assert texts("chunks", generation_batch_size=5) == base
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


class Student(Engine):
    """Right only for prompts whose question holds the word `open`; writes the hint `open` when asked for text."""

    def __init__(self):
        super().__init__()
        self.requests = []

    def generate(self, requests, settings, done=None):
        self.asked.append([r.prompt.sample.id for r in requests])
        self.requests.append(requests)
        out = []
        for request in requests:
            rows = [self.one(k, seed) for k, seed in zip(request.ks, request.seeds, strict=True)]
            if request.prompt.answer_format == FREE:
                rows = [replace(r, text="open") for r in rows]
            elif "open" in request.prompt.sample.question:
                rows = [replace(r, text=f"<answer>right {r.text}</answer>") for r in rows]
            out.append(rows)
        for number in reversed(range(len(out))):
            done(number, out[number])
        return out


def encode(sample: Sample, answer_format: str) -> Prompt:
    """Ids that depend on all that the model would see; refuses one hint."""
    if "too long" in sample.question:
        raise RowError("overlong", "too long")
    return Prompt(sample=sample, ids=tuple(map(ord, f"{answer_format}|{sample.question}")), media=(), spans=(), answer_format=answer_format)


def right(group: Group, ctx: RewardContext) -> list[float | None]:
    return [float("right" in r.text) for r in group.rollouts]


def guided(engine, strategy, **more):
    runner = RewardRunner([("right", 1.0, right)])
    more = {"score": lambda g, step: runner.score(g, RewardContext()), **more}
    return collector(engine, strategy, **more)


HINTS = {"a": ["wait", "open it"], "b": ["open it"], "c": ["too long", "open"], "d": ["too long"], "e": ["wait", "wait more"]}
HARD = [(i, encode(sample(id=name, meta={"hints": HINTS[name], "solution": "it opens"}), "answer_only")) for i, name in enumerate("abcde")]


def summary(groups) -> list[list[tuple[str, int | None]]]:
    return [[(r.provenance, r.guidance and r.guidance.tier) for r in g.group.rollouts] for g in groups]


def test_hint_rounds_of_a_chunk_run_together_and_stop_at_the_first_success(tmp_path: Path):
    engine = Student()
    out = guided(engine, scaf_grpo(warmup_steps=0)).collect(HARD, step=4, journal=Journal(tmp_path, 4))
    # a tries tier 1 and 2, b tier 1; c's first hint cannot be encoded, d has no other; e has no hint that helps
    assert engine.asked == [["a", "b"], ["a", "b"], ["a"], ["c", "d"], ["c"], ["e"], ["e"], ["e"]]
    plain, own = ("policy", None), lambda tier: ("guided", tier)
    assert summary(out.groups) == [[plain, plain, own(2)], [plain, plain, own(1)], [plain, plain, own(2)], [plain] * 3, [plain] * 3]
    assert [g.scores.total() for g in out.groups] == [[0.0, 0.0, 1.0]] * 3 + [[0.0] * 3] * 2
    assert out.notes == {
        "guidance/groups": 5,
        "guidance/helped": 3,
        "guidance/overlong": 2,
        "guidance/rollouts": 6,
        "guidance/tokens": 6,
    }


def test_guided_rows_know_both_prompts(tmp_path: Path):
    groups = guided(Student(), scaf_grpo(warmup_steps=0)).collect(HARD, step=0, journal=Journal(tmp_path / "scaf", 0)).groups
    first = groups[0].group
    assert [p.sample.question for p in first.guided] == ["When?\nHint: open it"]
    assert first.trained_under(first.rollouts[2]) is first.guided[0]
    assert first.trained_under(first.rollouts[0]) is first.prompt
    assert groups[0].outcomes() == [(0.0, 1)] * 3  # what the policy did without help
    assert groups[3].unguided is None
    added = guided(Student(), guide()).collect(HARD, step=0, journal=Journal(tmp_path / "guide", 0)).groups[1].group
    assert [r.provenance for r in added.rollouts] == ["policy"] * 3 + ["guided"] * 3
    assert added.trained_under(added.rollouts[5]) is added.prompt
    assert added.sampled_under(added.rollouts[5]) is added.guided[0]


def test_sage_writes_a_hint_and_trains_on_it(tmp_path: Path):
    engine = Student()
    out = guided(engine, sage()).collect(HARD[:1], step=0, journal=Journal(tmp_path, 0))
    assert [[(r.prompt.answer_format, len(r.seeds)) for r in round_] for round_ in engine.requests] == [
        [("answer_only", 3)],
        [(FREE, 2)],
        [("answer_only", 3)],
    ]
    mine = out.groups[0].group
    assert [p.sample.question for p in mine.guided] == ["When?\nHint: open"]
    assert all(mine.trained_under(r) is mine.guided[0] for r in mine.rollouts)


def test_a_group_with_a_success_never_sees_a_hint(tmp_path: Path):
    easy = [(0, encode(sample(id="z", meta={"hints": ["open"], "solution": "s"}), "answer_only"))]
    easy = [(0, replace(easy[0][1], sample=replace(easy[0][1].sample, question="open?")))]
    for i, strategy in enumerate((sage(), guide(), scaf_grpo(warmup_steps=0))):
        engine = Student()
        out = guided(engine, strategy).collect(easy, step=0, journal=Journal(tmp_path / str(i), 0))
        assert engine.asked == [["z"]]
        assert out.notes == {}
        plain_rows = guided(Student(), plain()).collect(easy, step=0, journal=Journal(tmp_path / f"plain{i}", 0))
        assert out.groups == plain_rows.groups


def test_seeds_of_hints_are_coordinates_of_their_own(tmp_path: Path):
    engine = Student()
    guided(engine, sage()).collect(HARD[:2], step=7, journal=Journal(tmp_path, 7))
    seeds = [s for round_ in engine.requests for r in round_ for s in r.seeds]
    assert len(set(seeds)) == len(seeds) == 2 * (3 + 2 + 3)
    assert engine.requests[0][1].seeds[2] == rng.key(1, "rollout", "rl", 7, 1, "b", 2)
    assert engine.requests[1][1].seeds[1] == rng.key(1, "rollout", "rl", 7, 1, "b", 1, "write", 1)
    assert engine.requests[2][0].seeds[0] == rng.key(1, "rollout", "rl", 7, 0, "a", 0, "hint", 1)


@pytest.mark.parametrize("make", [sage, guide, lambda: scaf_grpo(warmup_steps=0)])
@pytest.mark.parametrize("done", [1, 2, 3])
def test_guided_groups_come_back_bit_for_bit_after_a_crash(tmp_path: Path, monkeypatch, make, done):
    whole = guided(Student(), make()).collect(HARD, step=4, journal=Journal(tmp_path / "whole", 4))
    faults._passed.clear()
    monkeypatch.setenv("VLMRL_FAULT", f"rollout.chunk@{done}:raise")
    with pytest.raises(faults.InjectedFault):
        guided(Student(), make()).collect(HARD, step=4, journal=Journal(tmp_path / "j", 4))
    monkeypatch.delenv("VLMRL_FAULT")
    out = guided(Student(), make()).collect(HARD, step=4, journal=Journal(tmp_path / "j", 4))
    assert out.replayed == min(2 * done, 5)
    assert out.groups == whole.groups
    assert out.notes == whole.notes
    one = out.groups[0].group
    assert {id(one.trained_under(r)) for r in one.rollouts} <= {id(one.prompt), *map(id, one.guided)}
    assert (tmp_path / "j" / "step-00000004.rank-0.journal").read_bytes() == (
        tmp_path / "whole" / "step-00000004.rank-0.journal"
    ).read_bytes()
    json.dumps(Journal(tmp_path / "j", 4).replay(), allow_nan=False)


def test_hints_that_cannot_be_read_are_counted(tmp_path: Path):
    bad = [(0, encode(sample(id="a", meta={"hints": 3}), "answer_only"))]
    out = guided(Student(), scaf_grpo(warmup_steps=0)).collect(bad, step=0, journal=Journal(tmp_path, 0))
    assert out.notes == {"guidance/hints": 1}
    assert summary(out.groups) == [[("policy", None)] * 3]


class Endless:
    """Asks for the same tier for ever."""

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group, score, tokenize):
        return group

    def more(self, group: Group, rewards: Sequence[float | None], rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        return [HintRequest(question="open?", tier=1, rows=1)]

    def merge(self, group, rewards, rounds):
        return group


def test_a_strategy_cannot_ask_twice(tmp_path: Path):
    with pytest.raises(ValueError, match="asked twice"):
        guided(Student(), Endless()).collect(HARD, step=0, journal=Journal(tmp_path, 0))


def test_guidance_needs_an_encoder():
    made = collector(Engine(), plain())
    with pytest.raises(ValueError, match="needs `encode`"):
        replace(made, strategy=sage())


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
def test_guided_rows_train_on_what_was_sampled(tmp_path: Path, tiny: Tiny, layout: str):
    """With the real engine and encoder: the trainer's log-probs under each row's prompt are the sampler's, both prompts in one forward."""

    def helped(group: Group, ctx: RewardContext) -> list[float | None]:
        return [float(r.provenance == "guided") for r in group.rollouts]

    runner = RewardRunner([("helped", 1.0, helped)])
    prompts = [
        (i, tiny.encoder.encode(replace(s, meta={"hints": ["look at the red one"]}), "think")) for i, s in enumerate(tiny.samples[:2])
    ]
    made = GuidedCollector(
        engine=HFEngine(tiny.policy, tiny.vision),
        strategy=scaf_grpo(warmup_steps=0),
        score=lambda g, step: runner.score(g, RewardContext()),
        tokenize=tiny.bundle.tokenize,
        settings=GenerationSettings(max_new_tokens=5),
        num_generations=3,
        generation_batch_size=2,
        seed=1,
        stage="rl",
        encode=tiny.encoder.encode,
    )
    out = made.collect(prompts, step=0, journal=Journal(tmp_path, 0))
    again = made.collect(prompts, step=0, journal=Journal(tmp_path, 0))
    assert (again.replayed, again.groups) == (2, out.groups)
    rows, sampled = [], []
    for place, scored in enumerate(out.groups):
        group = scored.group
        assert [r.provenance for r in group.rollouts] == ["policy", "policy", "guided"]
        assert "Hint: look at the red one" in tiny.bundle.decode(group.guided[0].ids)
        assert group.guided[0].media == group.prompt.media
        rows += [Row(index=len(rows), group=place, prompt=group.trained_under(r), response=r.ids) for r in group.rollouts]
        sampled += [r.logprobs for r in group.rollouts]
    how = LAYOUTS[layout]
    for places in how.split(rows, 10**6):
        batch = how.pack([rows[n] for n in places], tiny.policy.positions, tiny.policy.device, pad_id=tiny.bundle.end_ids[0])
        with torch.no_grad():
            scored_rows = how.forward(tiny.policy, batch, tiny.vision, temperature=1.0, forbidden=tiny.bundle.forbidden_ids, train=False)
        for b, n in enumerate(places):
            own = scored_rows.logp_BT[b][batch.mask_BT[b]]
            assert own.tolist() == pytest.approx(sampled[n], abs=2e-4)


CHANGES = {
    "gold": (replace(PROMPTS[1][1], sample=sample("1.0 to 2.0", {"time": [1.0, 2.0]}, id="b")), "gold changed"),
    "meta": (replace(PROMPTS[1][1], sample=sample(id="b", meta={"options": ["x"]})), "gold changed"),
    "question": (replace(PROMPTS[1][1], sample=replace(sample(id="b"), question="Where?"), ids=(2,)), "question, prompt changed"),
    "prompt": (replace(PROMPTS[1][1], ids=(1, 1)), "prompt changed"),
    "media": (
        replace(
            PROMPTS[1][1],
            sample=replace(sample(id="b"), media=(MediaRef(kind="image", path="b.png"),)),
            media=(MediaHandle(kind="image", key="k2", grid_thw=(1, 2, 2), tokens=1),),
        ),
        r"media changed \(b.png\)",
    ),
}


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_answers_to_a_row_that_changed_are_refused_or_sampled_again(tmp_path: Path, change: str, scored: bool):
    """What was rewarded is what is trained: the journal's answers belong to one prompt, its media and its gold."""
    whole = collector(Engine()).collect(PROMPTS[:4], step=4, journal=Journal(tmp_path / "whole", 4))
    journal = Journal(tmp_path / "j", 4)
    for one in whole.groups:
        journal.append(scored_record(one, {}) if scored else sampled_record(one.group))
    now, what = CHANGES[change]
    prompts = [PROMPTS[0], (1, now), *PROMPTS[2:4]]
    before = journal.path.read_bytes()
    with pytest.raises(CheckpointError, match=rf"1 groups were sampled.*\n  row 'b' \(\): {what}; group rl/4/1/b\n.*data.changed: accept"):
        collector(Engine()).collect(prompts, step=4, journal=Journal(tmp_path / "j", 4))
    assert journal.path.read_bytes() == before
    engine, said = Engine(), []
    out = collector(engine, accept_changed=True, say=said.append).collect(prompts, step=4, journal=Journal(tmp_path / "j", 4))
    assert engine.asked == [["a", "b"]], "its batch is sampled again, the other is replayed"
    assert [line.split(": ")[2] for line in said] == ["sampled again"]
    assert out.groups[1].group.prompt == now
    assert out.from_journal == (["rl/4/0/a", "rl/4/2/c", "rl/4/3/d"] if scored else ["rl/4/2/c", "rl/4/3/d"])
    again = collector(Engine()).collect(prompts, step=4, journal=Journal(tmp_path / "j", 4))
    assert (again.replayed, again.groups) == (4, out.groups), "what was sampled for the new row is replayed for it"


def test_guided_groups_of_a_changed_row_are_refused(tmp_path: Path):
    guided(Student(), sage()).collect(HARD, step=4, journal=Journal(tmp_path, 4))
    place, prompt = HARD[2]
    changed = replace(prompt, sample=replace(prompt.sample, meta={**prompt.sample.meta, "solution": "another"}))
    with pytest.raises(CheckpointError, match=r"row 'c' .*gold changed"):
        guided(Student(), sage()).collect([*HARD[:2], (place, changed), *HARD[3:]], step=4, journal=Journal(tmp_path, 4))


def test_a_journal_that_does_not_say_what_was_sampled_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vlmrl.rollout.journal.SCHEMA", 3)
    Journal(tmp_path, 4)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"schema 3, this version reads 4.*delete this file"):
        Journal(tmp_path, 4)
