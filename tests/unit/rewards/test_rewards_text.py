"""The rewards of this version, each on answers scored by hand."""

from __future__ import annotations

import random

import pytest

import vlmrl.rewards.exact
import vlmrl.rewards.format
import vlmrl.rewards.temporal_iou  # noqa: F401 (importing registers them)
from vlmrl.answers.tags import gold_text
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Prompt, Rollout, Sample


def group(texts: list[str], *, answer_format: str = "think", answer: str = "10.00 to 20.00", time: list[float] | None = None) -> Group:
    gt = {} if time is None else {"time": time}
    sample = Sample(id="a", task="t", answer_type="time_span" if time else "choice", question="q", media=(), answer=answer, gt=gt)
    prompt = Prompt(sample=sample, ids=(), media=(), spans=(), answer_format=answer_format)
    rollouts = tuple(Rollout(k=k, ids=(), logprobs=(), text=t, finish="stop", policy_version=0) for k, t in enumerate(texts))
    return Group(id="g", prompt=prompt, rollouts=rollouts)


def answered(text: str) -> str:
    return f"<think>x</think><answer>{text}</answer>"


def test_temporal_iou_reward() -> None:
    texts = [answered(t) for t in ("10 to 20", "5 to 15", "0 to 5", "20 to 10", "about noon", "10")] + ["10 to 20", ""]
    got = reward.bind("temporal_iou")(group(texts, time=[10.0, 20.0]), RewardContext())
    assert list(got) == pytest.approx([1, 1 / 3, 0, 0, 0, 0, 0, 0])


def test_temporal_iou_sorts_only_when_asked() -> None:
    reversed_ = group([answered("20 to 10")], time=[10.0, 20.0])
    assert list(reward.bind("temporal_iou", {"sort_times": True})(reversed_, RewardContext())) == [1.0]


def test_temporal_iou_does_not_judge_a_sample_without_a_span() -> None:
    assert list(reward.bind("temporal_iou")(group([answered("1 to 2")] * 3), RewardContext())) == [None] * 3


def test_temporal_iou_judges_the_last_answer_and_not_the_thought() -> None:
    texts = [
        "<think>10 to 20</think><answer>0 to 1</answer>",
        "<answer>0 to 1</answer><answer>10 to 20</answer>",
        "<think><answer>10 to 20</answer></think>",
    ]
    assert list(reward.bind("temporal_iou")(group(texts, time=[10.0, 20.0]), RewardContext())) == [0, 1, 0]


@pytest.mark.parametrize("answer_format", ["think", "think_or_not", "answer_only"])
def test_temporal_iou_of_a_gold_row_is_one(answer_format: str) -> None:
    """A ground-truth row scores 1 under the parser of training, for 1000 spans."""
    draw = random.Random(0)
    for _ in range(1000):
        start = round(draw.uniform(0, 900), 2)
        end = round(start + draw.uniform(0.05, 300), 2)
        one = group(["x"], answer_format=answer_format, answer=f"{start:.2f} to {end:.2f}", time=[start, end])
        text = gold_text(one.prompt.sample, answer_format, None)
        gold = group([text], answer_format=answer_format, answer=one.prompt.sample.answer, time=[start, end])
        assert list(reward.bind("temporal_iou")(gold, RewardContext())) == [1.0]
        assert list(reward.bind("format")(gold, RewardContext())) == [1.0]
        assert list(reward.bind("exact")(gold, RewardContext())) == [1.0]


def test_format_asks_for_what_the_prompt_asked_for() -> None:
    texts = ["<think>x</think><answer>B</answer>", "<think>\n\n</think><answer>B</answer>", "<answer>B</answer>", "B", "<think>x</think>"]
    for answer_format in ("think", "think_or_not"):
        assert list(reward.bind("format")(group(texts, answer_format=answer_format), RewardContext())) == [1, 1, 0, 0, 0]
    assert list(reward.bind("format")(group(texts, answer_format="answer_only"), RewardContext())) == [0, 0, 1, 0, 0]


def test_exact_up_to_case_and_space() -> None:
    texts = [answered(t) for t in ("the Red  Door", " THE\nRED DOOR ", "the red doors", "red door", "")] + ["the red door"]
    assert list(reward.bind("exact")(group(texts, answer="The red door"), RewardContext())) == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["temporal_iou", "format", "exact"])
def test_empty_and_full_thoughts_earn_the_same(name: str) -> None:
    texts = ["<think>\n\n</think><answer>10.00 to 20.00</answer>", "<think>long thought</think><answer>10.00 to 20.00</answer>"]
    one, two = reward.bind(name)(group(texts, time=[10.0, 20.0]), RewardContext())
    assert one == two == 1
