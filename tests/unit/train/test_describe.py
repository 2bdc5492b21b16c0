"""train.stage.table: moments of advantages, by hand and against scipy."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from vlmrl.train.stage.table import advantage_moments


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
