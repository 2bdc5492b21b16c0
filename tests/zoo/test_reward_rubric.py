"""rewards.rubric."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import group, sample
from tests.support.judge_server import prompt_of, says, serving
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.rubric import rubric

CTX = RewardContext()
OF = sample("3", gt={"rubric": [{"text": "names the colour", "weight": 3}, {"text": "counts\nthem"}]})
TEXTS = ["<think>red</think><answer>3</answer>"]


def graded(*scores: Any) -> Any:
    """Items in reverse, as a judge may give them."""
    return says({"items": [{"id": str(i), "score": s} for i, s in reversed(list(enumerate(scores, start=1)))]})


@pytest.mark.parametrize(("scores", "expected"), [((1, 1), 1.0), ((1, 0), 0.75), ((0, 1), 0.25), ((0.5, 0.5), 0.5), ((0, 0), 0.0)])
def test_rubric_is_the_weighted_mean(scores: tuple[float, float], expected: float) -> None:
    """(3 * s1 + 1 * s2) / 4."""
    with serving(graded(*scores)) as s:
        assert rubric(group(TEXTS, OF), CTX, endpoint=s.endpoint) == [expected]
        assert "1: names the colour\n2: counts them\n" in prompt_of(s.server.requests[0][0])


def test_rubric_of_the_recipe_and_none_at_all() -> None:
    with serving(graded(0.5)) as s:
        assert rubric(group([*TEXTS, "  "], sample("3", gt={})), CTX, endpoint=s.endpoint, items=[{"text": "clear"}]) == [0.5, 0.0]
        assert rubric(group(TEXTS, sample("3", gt={})), CTX, endpoint=s.endpoint) == [None]
        assert s.server.calls == 1


@pytest.mark.parametrize("bad", [graded(1), graded(1, 1, 1), graded(1, 2), graded(1, None), says({"items": [{"id": "1", "score": 1}] * 2})])
def test_rubric_with_a_wrong_list_is_missing(bad: Any) -> None:
    with serving(otherwise=bad) as s:
        column = rubric(group(TEXTS, OF), CTX, endpoint=s.endpoint)
        assert column == [None]
        assert sum(column.reasons.values()) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "items",
    [
        "text",
        [{"text": ""}],
        [{"text": "a", "weight": 0}],
        [{"text": "a", "weight": True}],
        [{"text": "a", "weight": float("inf")}],
        [{"txt": "a"}],
        ["a"],
        [{"text": "a"}] * 51,
    ],
)
def test_rubric_refuses_malformed_checklists(items: Any) -> None:
    with serving() as s, pytest.raises(ValueError, match=r"row 'row'.*gt\.rubric"):
        rubric(group(TEXTS, sample("3", gt={"rubric": items})), CTX, endpoint=s.endpoint)
