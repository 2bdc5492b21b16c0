"""rewards.boxes: the printed vectors; order, missing and superfluous boxes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.boxes import boxes_match
from vlmrl.rewards.run.runner import RewardRunner

BOXES = [[0, 0, 10, 10], [22, 20, 32, 30]]
ROW = dataclasses.replace(sample('{"boxes": [[0, 0, 10, 10], [22, 20, 32, 30]]}', gt={"boxes": BOXES}), answer_type="bbox")


def texts(*answers: str) -> list[str]:
    return [f"<answer>{answer}</answer>" for answer in answers]


THREE = "[0, 0, 10, 10] [20, 20, 30, 30] [50, 50, 60, 60]"


@pytest.mark.parametrize(("measure", "value"), [("ciou", 0.550091), ("iou", 0.555556), ("giou", (1 + 80 / 120) / 3)])
def test_boxes_match(measure: str, value: float) -> None:
    of = group(texts(THREE, "none", "[22, 20, 32, 30] [0, 0, 10, 10]", "[0, 0, 10, 10]", "[0, 0, 10, 10] [0, 0, 10, 10]"), ROW)
    got = boxes_match(of, RewardContext(), measure=measure)  # type: ignore[arg-type]
    assert got == pytest.approx([value, 0, 1, 0.5, 0.5], abs=1e-6)


@given(st.permutations(["[0, 0, 10, 10]", "[20, 20, 30, 30]", "[50, 50, 60, 60]", "[3, 3, 9, 9]"]))
def test_order_does_not_matter(order: list[str]) -> None:
    first, second = boxes_match(group(texts(" ".join(order), " ".join(sorted(order))), ROW), RewardContext())
    assert first is not None
    assert first == pytest.approx(second)


def test_the_default_is_that_of_the_paper_and_gold_is_best() -> None:
    assert boxes_match(group(texts(THREE), ROW), RewardContext()) == pytest.approx([0.550091], abs=1e-6)
    assert RewardRunner([("boxes_match", 1.0, boxes_match)]).self_test([ROW], "answer_only") == []


def test_other_samples_are_not_judged() -> None:
    assert boxes_match(group(texts(THREE), sample(gt={"boxes": BOXES})), RewardContext()) == [None]
