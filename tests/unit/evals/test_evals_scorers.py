"""What each answer type's scorer gives, by hand; agreement with the rewards that read the same rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.gui_rules import profile_scores
from vlmrl.answers.tags import parse
from vlmrl.evals.score.scorers import thought_scores
from vlmrl.protocols import RewardContext
from vlmrl.rewards.boxes import box_iou
from vlmrl.rewards.gui_action import gui_action
from vlmrl.rewards.rule_spatial import rule_consistency, rule_grounding
from vlmrl.types import Sample

CLICK = {"action": "click", "coordinate": [500, 500], "box": [400, 400, 600, 600]}

GUI_RULES = {metric.name for metric in ANSWER_TYPES["action"].more_metrics}


def sample(answer_type: str, gt: dict[str, Any], answer: str = "") -> Sample:
    return Sample(id="q", task="t", answer_type=answer_type, question="?", media=(), answer=answer, gt=gt, source="a.jsonl:3")


def score(answer: str | None, answer_type: str, gt: dict[str, Any], gold: str = "") -> tuple[Any, ...]:
    return ANSWER_TYPES[answer_type].score(answer, sample(answer_type, gt, gold))


def test_time_spans() -> None:
    assert score(None, "time_span", {"time": [2, 4]}) == (None, (2.0, 4.0), {"tiou": 0.0})
    assert score("5 to 3", "time_span", {"time": [2, 4]}) == ((5.0, 3.0), (2.0, 4.0), {"tiou": pytest.approx(1 / 3)})


def test_boxes() -> None:
    gt = {"boxes": [[0, 0, 500, 500]]}
    assert score('{"boxes": [[0, 0, 250, 500]]}', "bbox", gt) == ((0, 0, 250, 500), (0, 0, 500, 500), {"iou": 0.5})
    assert score("[0, 0, 500, 500] or [0, 0, 500, 500]", "bbox", gt)[2] == {"iou": 0.5}  # the second box is superfluous
    assert score("left", "bbox", gt) == (None, (0, 0, 500, 500), {"iou": 0.0})


@pytest.mark.parametrize(
    ("answer", "gt", "exact", "relative"),
    [
        ("3", {"count": 3}, 1.0, 1.0),
        ("three", {"count": 3}, 1.0, 1.0),
        ("44", {"number": 40}, 0.0, 0.9),  # off by a tenth: all thresholds but the last, 0.95
        ("20", {"number": 40}, 0.0, 0.1),  # off by half: the first only
        ("3 or 4", {"count": 3}, 0.0, 0.0),
        (None, {"count": 3}, 0.0, 0.0),
    ],
)
def test_numbers(answer: str | None, gt: dict[str, Any], exact: float, relative: float) -> None:
    pred, gold, scores = score(answer, "number", gt)
    assert scores == {"exact": exact, "relative_accuracy": relative}
    assert gold == (float(next(iter(gt.values()))),)
    assert (pred is None) == (answer in (None, "3 or 4"))


def test_a_number_without_ground_truth_is_that_of_the_answer() -> None:
    assert score("1,200", "number", {}, gold="1200")[1:] == ((1200.0,), {"exact": 1.0, "relative_accuracy": 1.0})
    with pytest.raises(ValueError, match=r"'q' \(a\.jsonl:3\): answer 'many'"):
        score("3", "number", {}, gold="many")


@pytest.mark.parametrize("answer_type", ["exact_text", "choice"])
def test_texts(answer_type: str) -> None:
    assert score(" A ", answer_type, {}, gold="a") == ((), (), {"exact": 1.0})
    assert score("B", answer_type, {}, gold="a") == ((), (), {"exact": 0.0})
    assert score(None, answer_type, {}, gold="a") == (None, (), {"exact": 0.0})


@pytest.mark.parametrize(
    ("answer", "gold", "scores"),
    [
        ('{"action": "click", "coordinate": [410, 590]}', CLICK, {"action_type": 1, "action_arguments": 1, "step": 1}),
        ('{"action": "click", "coordinate": [10, 590]}', CLICK, {"action_type": 1, "action_arguments": 0, "step": 0}),
        ('{"action": "scroll", "direction": "up"}', CLICK, {"action_type": 0, "action_arguments": 0, "step": 0}),
        ("click it", CLICK, {"action_type": 0, "action_arguments": 0, "step": 0}),
        ('{"action": "wait"}', {"action": "wait"}, {"action_type": 1, "action_arguments": 1, "step": 1}),
        ('{"action": "click", "coordinate": [1, 1]}', {"action": "click"}, {"action_type": 1, "step": 1}),
    ],
)
def test_actions(answer: str, gold: dict[str, Any], scores: dict[str, float]) -> None:
    found = score(answer, "action", {"action": gold})
    ours = {name: value for name, value in found[2].items() if name not in GUI_RULES}
    assert ours == scores
    rules = {name: value for name, value in found[2].items() if name in GUI_RULES}
    assert rules == profile_scores(answer, sample("action", {"action": gold}))
    assert (found[0] is None) == (answer == "click it")


def test_a_row_without_an_action_is_named() -> None:
    with pytest.raises(ValueError, match=r"row 'q' \(a.jsonl:3\): gt.action None"):
        score("x", "action", {})


SPATIAL = {
    "relation": ["red square", "left of", "grey circle"],
    "objects": {"red square": [0, 0, 500, 500], "grey circle": [500, 0, 1000, 500]},
}
THOUGHT = (
    "The red square is at <bbox>[0,0,500,500]</bbox>. The grey circle is at <bbox>[500,0,1000,500]</bbox>. "
    "So the red square is left of the grey circle."
)


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (f"<think>{THOUGHT}</think><answer>yes</answer>", {"consistency": 1.0, "grounding": 1.0}),
        (f"<think>{THOUGHT.replace('left', 'right')}</think><answer>yes</answer>", {"consistency": 0.0, "grounding": 1.0}),
        (f"<think>{THOUGHT.replace('[0,0', '[0,400')}</think><answer>yes</answer>", {"consistency": 1.0, "grounding": 0.5}),
        (f"<think>{THOUGHT}</think><answer>no</answer>", {"grounding": 1.0}),  # a wrong answer is not judged for consistency
        ("<think>\n\n</think><answer>yes</answer>", {"consistency": 0.0, "grounding": 0.0}),
        ("", {"grounding": 0.0}),
    ],
)
def test_thoughts_are_judged_as_by_the_rewards(text: str, scores: dict[str, float]) -> None:
    row = sample("exact_text", SPATIAL, answer="yes")
    assert thought_scores(parse(text, "think"), row) == scores
    of = group([text], row, "think")
    assert rule_consistency(of, RewardContext()) == [scores.get("consistency")]
    assert rule_grounding(of, RewardContext()) == [scores["grounding"]]


def test_rows_that_say_nothing_of_thoughts() -> None:
    assert thought_scores(parse("<think>a</think><answer>yes</answer>", "think"), sample("exact_text", {}, "yes")) == {}


@given(st.text(alphabet='[]{}0123456789,. "boxesaction:click', max_size=60))
def test_boxes_and_actions_agree_with_their_rewards(answer: str) -> None:
    text = f"<answer>{answer}</answer>"
    read = parse(text, "answer_only").answer
    row = sample("bbox", {"boxes": [[0, 0, 500, 500], [100, 100, 900, 900]]})
    assert ANSWER_TYPES["bbox"].score(read, row)[2]["iou"] == box_iou(group([text], row, "answer_only"), RewardContext())[0]
    row = sample("action", {"action": CLICK})
    found = ANSWER_TYPES["action"].score(read, row)[2]
    rewarded = gui_action(group([text], row, "answer_only"), RewardContext())[0]
    assert rewarded is not None
    assert (found["step"] == 1) == (rewarded == 1)


@pytest.mark.parametrize(
    ("thought", "scores"),
    [("green, blue", {"consistency": 1.0}), ("blue, green", {"consistency": 0.0}), ("\n\n", {}), ("", {})],
)
def test_a_thought_that_was_left_out_is_neither_consistent_nor_inconsistent(thought: str, scores: dict[str, float]) -> None:
    """Where answers are listed, so that thoughts may be left out; the reward gives 0 there, or leaving out would be a way around it."""
    row = dataclasses.replace(sample("exact_text", {}, answer="blue"), meta={"choices": ["red", "green", "blue"]})
    text = f"<think>{thought}</think><answer>blue</answer>"
    assert thought_scores(parse(text, "think_or_not"), row) == scores
    assert rule_consistency(group([text], row, "think_or_not"), RewardContext()) == [scores.get("consistency", 0.0)]
