"""train.batch: the columns of all ranks' rollouts, and which of them are this rank's and train."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.builders import group, sample
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch, total
from vlmrl.types import ScoredGroup, Scores


def scored(place: int, *rewards: float | None) -> tuple[int, ScoredGroup]:
    """The rollouts of a row with these rewards in the first of two columns; the second judged nothing."""
    of_row = group([f"{place}-{n}" for n in range(len(rewards))], sample(id=f"row-{place}"))
    scores = Scores(columns=("a", "b"), weights=(2.0, 1.0), rewards_GK=tuple((r, None) for r in rewards))
    return place, ScoredGroup(group=of_row, scores=scores)


def of_ranks(monkeypatch: pytest.MonkeyPatch, *ranks: list[tuple[int, ScoredGroup]]) -> list[StepBatch]:
    """The batch of each rank of a step."""
    sent: list[Any] = []

    def on(rank: int, gather: Any) -> StepBatch:
        monkeypatch.setattr(dist, "rank", lambda: rank)
        monkeypatch.setattr(dist, "gather", gather)
        return StepBatch.of(ranks[rank], baseline={"row-1": 0.5}.get, progress=0.25)

    for rank in range(len(ranks)):
        on(rank, lambda own: sent.append(own) or [own])
    return [on(rank, lambda _: sent) for rank in range(len(ranks))]


def test_ranks_have_the_same_columns_and_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = of_ranks(monkeypatch, [scored(0, 1.0, None), scored(2, 3.0)], [scored(1, 5.0, 7.0)])
    for batch in (first, second):
        assert batch.x.group_N.tolist() == [0, 0, 1, 1, 2], "in plan order, whoever has them"
        assert batch.x.reward_N.nan_to_num(-1).tolist() == [2.0, -1.0, 10.0, 14.0, 6.0]
        assert batch.x.valid_N.tolist() == batch.counted_N.tolist() == [True, False, True, True, True]
        assert batch.baseline_N.nan_to_num(-1).tolist() == [-1.0, -1.0, 0.5, 0.5, -1.0]
        assert bool(batch.keep_N.all())
    assert (first.mine.tolist(), second.mine.tolist()) == ([0, 1, 4], [2, 3])
    for batch in (first, second):
        assert [row.group for row in batch.rows] == batch.x.group_N[batch.mine].tolist()
        assert batch.mask_NT.sum(dim=1).tolist() == batch.x.length_N[batch.mine].tolist()
        assert [rollout.text for rollout in batch.rollouts] == [r.text for _, one in batch.groups for r in one.group.rollouts]


def test_the_first_kept_groups_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = of_ranks(monkeypatch, [scored(0, 1.0, 2.0), scored(2, 3.0)], [scored(1, 5.0, 7.0)])
    for batch in (first, second):
        batch.keep_N = torch.tensor([False, False, True, False, True])
        assert batch.kept_groups() == 2
        batch.keep_first(1)
        assert batch.keep_N.tolist() == [False, False, True, False, False]
    assert (first.kept(), second.kept()) == ([], [0])


def test_a_row_trains_if_filters_and_providers_let_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = of_ranks(monkeypatch, [scored(0, 1.0, 2.0, 3.0)])[0]
    batch.keep_N = torch.tensor([True, True, False])
    assert batch.kept() == [0, 1]
    batch.x = dataclasses.replace(batch.x, provided={"trains_N": torch.tensor([False, True, True])})
    assert batch.kept() == [1]
    assert batch.kept_groups() == 1


def test_a_total_weighs_what_was_judged() -> None:
    nan = float("nan")
    rewards_NK = torch.tensor([[1.0, 2.0], [nan, 2.0], [nan, nan]], dtype=torch.float64)
    assert total(rewards_NK, torch.tensor([2.0, 0.5], dtype=torch.float64)).nan_to_num(-1).tolist() == [3.0, 1.0, -1.0]
    assert total(rewards_NK, None).nan_to_num(-1).tolist() == [3.0, 2.0, -1.0]
