"""rewards.gui_action."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.gui_action import gui_action

CTX = RewardContext()
CLICK = {"action": "click", "coordinate": [150, 200], "box": [100, 100, 200, 300]}


def score(gold: dict[str, Any], *texts: str, **weights: float) -> list[float | None]:
    of = sample("-", gt={"action": gold})
    return list(gui_action(group([f"<answer>{text}</answer>" for text in texts], of, template="answer_only"), CTX, **weights))


def click(x: int, y: int, kind: str = "click") -> str:
    return json.dumps({"action": kind, "coordinate": [x, y]})


def test_reward_gui_action() -> None:
    got = score(CLICK, click(150, 200), click(100, 300), click(99, 300), click(150, 200, "long_press"), '{"action": "click"}', "click", "")
    assert got == pytest.approx([1, 1, 0.4, 0.1, 0.4, 0, 0])


def test_text_and_direction() -> None:
    typed = {"action": "input_text", "text": "hello world"}
    assert score(typed, json.dumps(typed), '{"action": "type", "text": "hello there"}') == pytest.approx([1, 0.7])
    up = {"action": "scroll", "direction": "up"}
    assert score(up, json.dumps(up), '{"action": "scroll", "direction": "down"}') == pytest.approx([1, 0.4])
    assert score({"action": "navigate_back"}, '{"action": "navigate_back"}') == [1]


def test_without_true_arguments_their_weight_is_left_out() -> None:
    assert score({"action": "click"}, click(1, 1), '{"action": "scroll"}') == pytest.approx([1, 0.25])


def test_form_weights_and_radius() -> None:
    of = sample("-", gt={"action": CLICK})
    loose = [f"sure: <answer>{click(150, 200)}</answer>"]
    assert gui_action(group(loose, of, template="answer_only"), CTX) == pytest.approx([0.9])
    assert score(CLICK, click(0, 0), w_format=0.0, w_type=1.0, w_args=1.0) == [0.5]
    point = {"action": "click", "coordinate": [500, 500]}
    assert score(point, click(640, 500), click(650, 500)) == pytest.approx([1, 0.4])
    assert score(point, click(650, 500), radius=0.2) == [1]


def test_faults_and_other_samples() -> None:
    assert gui_action(group(["x"], sample()), CTX) == [None]
    with pytest.raises(ValueError, match="is not an action"):
        score({"action": 3}, "x")
    with pytest.raises(ValueError, match="weights"):
        score(CLICK, "x", w_args=-1.0)
    with pytest.raises(ValueError, match="w_type"):
        score(CLICK, "x", w_type=0.0)
