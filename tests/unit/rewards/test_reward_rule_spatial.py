"""rewards.rule_spatial."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.rule_spatial import rule_consistency, rule_grounding

CTX = RewardContext()
GT = {
    "relation": ["red square", "left of", "grey circle"],
    "objects": {"red square": [100, 250, 350, 500], "grey circle": [600, 100, 850, 400]},
}
SAMPLE = sample("yes", gt=GT)
BOXES = "The red square is at <bbox>[100,250,350,500]</bbox>. The grey circle is at <bbox>[600,100,850,400]</bbox>."
SO = "So the red square is left of the grey circle."


def texts(*thoughts: str, answer: str = "yes") -> list[str]:
    return [f"<think>{thought}</think><answer>{answer}</answer>" for thought in thoughts]


def test_reward_rule_consistency() -> None:
    coherent, opposite, empty = f"{BOXES} {SO}", f"{BOXES} {SO.replace('left', 'right')}", "\n\n"
    assert rule_consistency(group(texts(coherent, opposite, SO, empty), SAMPLE), CTX) == [1, 0, 1, 0]
    assert rule_consistency(group(["<answer>yes</answer>"], SAMPLE), CTX) == [0]


def test_wrong_answers_and_other_samples_are_masked() -> None:
    opposite = f"{BOXES} {SO.replace('left', 'right')}"
    assert rule_consistency(group([*texts(opposite, answer="no"), "<think>", ""], SAMPLE), CTX) == [None] * 3
    assert rule_consistency(group(texts(SO), sample("yes", gt={})), CTX) == [None]
    assert rule_grounding(group(texts(SO), sample("yes", gt={})), CTX) == [None]


def test_reward_rule_grounding() -> None:
    shifted = BOXES.replace("[600,100,850,400]", "[600,600,850,900]")
    assert rule_grounding(group(texts(BOXES, shifted, "\n\n", BOXES + BOXES), SAMPLE), CTX) == pytest.approx([1, 0.5, 0, 0.5])
    # not masked by the answer: it is the picture that decides
    assert rule_grounding(group(texts(BOXES, answer="no"), SAMPLE), CTX) == [1]
    near = BOXES.replace("[100,250,350,500]", "[100,250,250,500]")  # IoU 0.6
    assert rule_grounding(group(texts(near), SAMPLE), CTX, threshold=0.7) == [0.5]


def test_a_row_with_a_bad_relation_is_a_fault() -> None:
    with pytest.raises(ValueError, match=r"gt\.relation"):
        rule_consistency(group(texts(SO), sample("yes", gt={"relation": ["a", "b"]})), CTX)


def test_where_the_answers_are_listed_the_conclusion_is_the_last_one_named() -> None:
    asked = sample("blue", meta={"choices": ["red", "green", "Blue"]})
    thoughts = ("green, red, blue", "blue, red", "The ball is under the BLUE cup.", "bluer than red", "\n\n", "")
    assert rule_consistency(group(texts(*thoughts, answer="blue"), asked), CTX) == [1, 0, 1, 0, 0, 0]
    assert rule_consistency(group(texts("red, blue", answer="red"), asked), CTX) == [None]
