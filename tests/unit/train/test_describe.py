"""train.stage.table: what is logged of a step's rewards and advantages, by hand and against scipy."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from tests.support.builders import group
from vlmrl.train.stage.table import advantage_moments, describe, reward_table
from vlmrl.types import ScoredGroup, Scores


def logged(groups: list[list[tuple[float | None, ...]]], adv: list[float]) -> dict[str, float]:
    """What is logged of groups of rollouts with these rewards (a weighs 1, b weighs 0.5)."""
    scored = [
        (
            place,
            ScoredGroup(
                group=group(["x"] * len(rewards), answer_format="think"),
                scores=Scores(columns=("a", "b"), weights=(1.0, 0.5), rewards_GK=tuple(rewards)),
            ),
        )
        for place, rewards in enumerate(groups)
    ]
    return describe(scored, reward_table(scored, baseline=lambda _: None, progress=0.0), torch.tensor(adv, dtype=torch.float64))


def test_share_of_rollouts_that_a_reward_judged() -> None:
    out = logged([[(1.0, None), (None, None)], [(0.0, None), (0.0, None)]], [0.0] * 4)
    assert (out["rewards/a/judged"], out["rewards/b/judged"]) == (0.75, 0.0)
    assert out["rewards/a/mean"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("groups", "adv", "expected"),
    [
        ([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 1.0)]], [0.0] * 4, 0.0),
        ([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 0.0)]], [0.0] * 4, 1.0),
        ([[(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 1.0)]], [0.2, 0.2, -0.2, -0.2], 2.0),  # compared with other groups
        ([[(1.0, 0.0)], [(0.0, 1.0)]], [0.0, 0.1], 1.0),  # one answer each, against a memory
        ([[(None, None), (None, None)]], [0.0, 0.0], 0.0),
    ],
    ids=["flat", "one differs", "across groups", "single", "unjudged"],
)
def test_groups_with_a_signal(groups, adv, expected) -> None:
    assert logged(groups, adv)["groups_with_signal"] == expected


def test_moments_of_all_and_of_each_task() -> None:
    # [0, 0, 0, 0, 1]: variance 4/25, third moment 12/125, fourth 52/625; so skewness 1.5 and kurtosis 3.25
    adv = torch.tensor([0, 0, 0, 0, 1, -1, 1, -1, 1], dtype=torch.float64)
    task = torch.tensor([0] * 5 + [1] * 4)
    out = advantage_moments(adv, task, ("boxes", "counts"))
    assert out["advantage/skewness/boxes"] == pytest.approx(1.5)
    assert out["advantage/kurtosis/boxes"] == pytest.approx(3.25)
    assert out["advantage/skewness/counts"] == pytest.approx(0.0)
    assert out["advantage/kurtosis/counts"] == pytest.approx(1.0)
    assert out["advantage/skewness"] == pytest.approx(stats.skew(adv.numpy()))
    assert out["advantage/kurtosis"] == pytest.approx(stats.kurtosis(adv.numpy(), fisher=False))


def test_one_task_has_no_parts_and_equal_advantages_no_moments() -> None:
    zero = advantage_moments(torch.zeros(4), torch.zeros(4, dtype=torch.int64), ("boxes",))
    assert zero == {"advantage/skewness": 0.0, "advantage/kurtosis": 0.0}
