"""thoughts.reverse: what is asked, what the gate refuses, second attempts, and the whole way with the tiny model."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import sample
from tests.support.tiny import Tiny
from vlmrl.errors import RowError
from vlmrl.extras.thoughts.reverse import Derived, Gate, refuse, reverse_question, reverse_thoughts
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Rollout

SETTINGS = GenerationSettings(max_new_tokens=4096)


class Encoder:
    def encode(self, sample, answer_format):
        if sample.id == "big":
            raise RowError("overlong", "too long")
        return Prompt(sample=sample, ids=(1,), media=(), spans=(), answer_format=answer_format)


class Scripted:
    """Gives each sample its texts in turn; answers a check with `3 to 5` where the thought holds `late`."""

    version = 0

    def __init__(self, **texts: list[str]):
        self.texts = texts
        self.asked: list[tuple[str, str, str]] = []
        self.settings: list[GenerationSettings] = []
        self.seeds: list[int] = []

    def generate(self, requests, settings, done=None):
        self.settings.append(settings)
        out = []
        for request in requests:
            of = request.prompt.sample
            self.asked.append((of.id, request.prompt.answer_format, of.question))
            self.seeds += request.seeds
            if request.prompt.answer_format == "answer_only":
                text = "<answer>3 to 5</answer>" if "late" in of.question else "<answer>8 to 9</answer>"
            else:
                text = self.texts[of.id].pop(0)
            out.append([rollout(text)])
        return out

    def close(self):
        pass


def rollout(text: str, *, tokens: int = 5, finish="stop") -> Rollout:
    return Rollout(k=0, ids=(7,) * tokens, logprobs=(0.0,) * tokens, text=text, finish=finish, policy_version=0)


def rows(*names: str):
    return [sample(id=name) for name in names]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The door moves at the end.", None),
        (" \n", "empty"),
        ("so <answer>3 to 5</answer>", "tag"),
        ("<Think>hm", "tag"),
        ("an <image> of", "tag"),
        ("<|im_end|>", "tag"),
        ("When? It is late.", "question"),
        ("It is clear when.", None),
    ],
)
def test_the_gate(text, reason):
    assert refuse(rollout(text), sample(), Gate()) == reason


def test_the_gate_of_length_answer_and_long_questions():
    long = dataclasses.replace(sample(), question="When does the red door open?")
    assert refuse(rollout("ok", tokens=1024), sample(), Gate()) is None
    assert refuse(rollout("ok", tokens=1025), sample(), Gate()) == "long"
    assert refuse(rollout("ok", finish="length"), sample(), Gate()) == "long"
    assert refuse(rollout("We ask: when does the RED door  open"), long, Gate()) == "question"
    assert refuse(rollout("the red door"), long, Gate()) is None
    assert refuse(rollout("from 3 on"), sample(), Gate()) is None
    assert refuse(rollout("from 3 on"), sample(), Gate(forbid_answer=True)) == "answer"


def test_thoughts_and_second_attempts():
    engine = Scripted(a=["fine"], b=["", "better"], c=["<answer>", "When?"])
    out = reverse_thoughts(engine, Encoder(), [*rows("a", "b"), *rows("big"), *rows("c")], settings=SETTINGS, seed=1, chunk=2)
    assert out == [
        Derived("a", "fine", "ok"),
        Derived("b", "better", "ok"),
        Derived("big", None, "overlong"),
        Derived("c", None, "question"),
    ]
    assert [name for name, _, _ in engine.asked] == ["a", "b", "c", "b", "c"]
    assert {answer_format for _, answer_format, _ in engine.asked} == {"free"}
    assert engine.asked[0][2] == reverse_question(sample())
    assert "Question: When?" in engine.asked[0][2]
    assert "Answer: 3.0 to 5.0" in engine.asked[0][2]
    assert len(set(engine.seeds)) == 5
    assert {s.max_new_tokens for s in engine.settings} == {1024}


def test_a_judge_keeps_thoughts_that_lead_to_the_answer():
    from vlmrl.protocols import RewardContext
    from vlmrl.rewards.temporal_iou import temporal_iou_reward

    engine = Scripted(a=["it is late"], b=["no idea", "still none"], c=["hm", "oh, late"])
    judge = lambda g: temporal_iou_reward(g, RewardContext())  # noqa: E731
    out = reverse_thoughts(engine, Encoder(), rows("a", "b", "c"), settings=SETTINGS, seed=1, judge=judge)
    assert out == [Derived("a", "it is late", "ok"), Derived("b", None, "differs"), Derived("c", "oh, late", "ok")]
    checks = [(name, question) for name, answer_format, question in engine.asked if answer_format == "answer_only"]
    assert checks[0] == ("a", "When?\nReasoning: it is late")
    assert [s.temperature for s in engine.settings] == [1.0, 0.0, 1.0, 0.0]
    # the judge sees the row's own question
    seen = []
    reverse_thoughts(
        Scripted(a=["x"]), Encoder(), rows("a"), settings=SETTINGS, seed=1, attempts=1, judge=lambda g: seen.append(g) or [1.0]
    )
    assert seen[0].prompt.sample == sample(id="a")


def test_a_row_depends_on_its_own_coordinates_only():
    one, two = Scripted(a=["x"], b=["x"]), Scripted(b=["x"])
    reverse_thoughts(one, Encoder(), rows("a", "b"), settings=SETTINGS, seed=1)
    reverse_thoughts(two, Encoder(), rows("b"), settings=SETTINGS, seed=1)
    assert one.seeds[1:] == two.seeds


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"chunk": 0}])
def test_arguments_are_checked(bad):
    with pytest.raises(ValueError, match="reverse_thoughts"):
        reverse_thoughts(Scripted(), Encoder(), rows("a"), settings=SETTINGS, seed=0, **bad)
    with pytest.raises(ValueError, match="ids of their own"):
        reverse_thoughts(Scripted(), Encoder(), rows("a", "a"), settings=SETTINGS, seed=0)


def test_with_the_tiny_model(tiny: Tiny):
    engine = HFEngine(tiny.policy, tiny.vision)
    settings = GenerationSettings(max_new_tokens=6)
    samples = tiny.samples[:3]
    out = reverse_thoughts(engine, tiny.encoder, samples, settings=settings, seed=3)
    assert [one.sample_id for one in out] == [s.id for s in samples]
    assert all((one.thought is None) == (one.reason != "ok") for one in out)
    assert out == reverse_thoughts(engine, tiny.encoder, samples, settings=settings, seed=3, chunk=1)


@pytest.mark.parametrize("bad", ["so \0 it is", "half \ud83d a pair"])
def test_characters_that_no_row_may_hold_are_refused(bad: str) -> None:
    rollout = Rollout(k=0, ids=(1,), logprobs=(-1.0,), text=bad, finish="stop", policy_version=0)
    assert refuse(rollout, sample(), Gate()) == "characters"
