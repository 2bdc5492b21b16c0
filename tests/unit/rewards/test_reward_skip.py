"""rewards.skip."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.config.schema import Config
from vlmrl.methods import method_problems
from vlmrl.protocols import RewardContext
from vlmrl.rewards.skip import right_without_thought

EMPTY, FULL = "<think>\n\n</think>", "<think>It is red.</think>"


def test_reward_right_without_thought() -> None:
    texts = [
        f"{EMPTY}<answer>red</answer>",
        f"{FULL}<answer>red</answer>",
        f"{EMPTY}<answer>blue</answer>",
        f"{FULL}<answer>blue</answer>",
        "<think></think><answer> RED </answer>",
        "<answer>red</answer>",  # no thought block at all is not the answer format
        f"{EMPTY}<answer>red</answer> and more",
        "red",
        "",
    ]
    asked = dataclasses.replace(sample("red", gt={}), answer_type="exact_text")
    assert right_without_thought(group(texts, asked), RewardContext()) == [1, 0, 0, 0, 1, 0, 0, 0, 0]


def test_right_is_what_the_answer_type_counts_so() -> None:
    asked = sample("2.0 to 4.0", gt={"time": [2.0, 4.0]})
    texts = [f"{EMPTY}<answer>{span}</answer>" for span in ("2.0 to 4.0", "2.0 to 3.0", "2.0 to 2.9", "7.0 to 9.0", "soon")]
    assert right_without_thought(group(texts, asked), RewardContext()) == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(("answer_format", "refused"), [("think_or_not", False), ("think", True), ("answer_only", True)])
def test_it_is_for_prompts_that_leave_the_choice(answer_format: str, refused: bool) -> None:
    stage: dict[str, Any] = {"name": "rl", "kind": "grpo", "source": {"path": "a"}, "steps": 1, "answer_format": answer_format}
    stage["rewards"] = [{"name": "exact"}, {"name": "right_without_thought", "weight": 0.2}]
    problems = method_problems(Config.model_validate({"model": {"path": "m"}, "stages": [stage]}))
    assert [("leaving a thought out" in problem and answer_format in problem) for problem in problems] == [True] * refused
