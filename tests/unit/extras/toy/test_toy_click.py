"""toy.click: elements to click, small and large: rows that score, loose answers that err, and pictures that show what is asked."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np

import vlmrl.answers  # noqa: F401 (registers them)
from tests.support.builders import group
from vlmrl.answers.point import pointing_score
from vlmrl.data.row import parse_row
from vlmrl.extras.toy.click import items
from vlmrl.protocols import RewardContext
from vlmrl.rewards.points import click
from vlmrl.rewards.run.runner import RewardRunner


def test_the_middle_hits_by_either_reward() -> None:
    samples = [parse_row(items(0, "train", index)[0].row, source="x", media_root=".") for index in range(60)]
    assert all(pointing_score(sample.answer, sample) == 1 for sample in samples)
    assert RewardRunner([("click", 1.0, click)]).self_test(samples, "answer_only") == []
    for sample in samples:
        assert click(group([f"<answer>{sample.answer}</answer>"], sample), RewardContext(), largest=0.2) == [1]


def test_the_middle_of_a_quarter_hits_a_large_element_at_its_edge_alone() -> None:
    for index in range(60):
        row = items(1, "test", index)[0].row
        sample = parse_row(row, source="x", media_root=".")
        large = row["meta"]["category"] == "large"
        assert large == bool(index % 2)
        quarters = [f"<answer>[{x}, {y}]</answer>" for x in (250, 750) for y in (250, 750)]
        hits = click(group(quarters, sample), RewardContext())
        guarded = click(group(quarters, sample), RewardContext(), largest=0.2)
        assert (sum(map(float, hits)), sum(map(float, guarded))) == ((2, 0) if large else (1, 1))


def test_loose_answers_err_in_half_of_the_places_where_they_can() -> None:
    moved = Counter(
        told == 250
        for index in range(200)
        for row in [items(2, "pretrain", index)[0].row]
        for told, true in zip(json.loads(row["answer"]), _middle(row["meta"]["objects"][0]["box"]), strict=True)
        if true > 250
    )
    assert 0.4 < moved[True] / moved.total() < 0.6


def _middle(box: list[int]) -> list[int]:
    return [500 if high - low > 500 else 250 + 500 * (low >= 500) for low, high in zip(box[:2], box[2:], strict=True)]


def test_elements_do_not_overlap_and_the_named_one_is_coloured() -> None:
    for index in range(60):
        row = items(3, "train", index)[0].row
        things = row["meta"]["objects"]
        assert row["prompt"] == f"the {things[0]['color']} {things[0]['shape']}"
        assert things[0]["color"] != "grey"
        assert {thing["color"] for thing in things[1:]} <= {"grey"}
        for i, a in enumerate(things):
            for b in things[:i]:
                (ax, ay, aw, ah), (bx, by, bw, bh) = a["box"], b["box"]
                assert aw <= bx or bw <= ax or ah <= by or bh <= ay


def test_deterministic() -> None:
    first, again, other = items(0, "sft", 7)[0], items(0, "sft", 7)[0], items(1, "sft", 7)[0]
    assert first.row == again.row
    assert np.array_equal(first.pixels, again.pixels)
    assert not np.array_equal(first.pixels, other.pixels)
