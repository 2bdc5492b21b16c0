"""algo.filter.verifier_pairs_proposed, the filter and the reward_shaping."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.filter.verifier_pairs_proposed import grade, keep_pairs

NAN = float("nan")
CHECKS = {"consistency": 0.5, "repetition": -0.2}


def step(rows, groups, **more):
    """Rows are (accuracy, consistency, repetition)."""
    x = inputs([(a, g, True) for (a, *_), g in zip(rows, groups, strict=True)])
    columns = {"rewards_NK": torch.tensor(rows).double(), "columns": ("accuracy", "consistency", "repetition")}
    return dataclasses.replace(x, **({"truncated_N": torch.zeros(len(rows), dtype=torch.bool)} | columns | more))


def test_verifier_pairs_proposed_by_hand():
    rows = [(1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, -0.5), (0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (0.0, 1.0, 0.0), (1.0, NAN, 0.0)]
    x = step(rows, [0, 0, 0, 0, 1, 1, 0])
    keep, reason = keep_pairs(x, checks=CHECKS)
    assert keep.tolist() == [True, True, True, False, False, False, True], "wrong ones are in no pair; group 1 has no flawed right one"
    assert reason == "verifier_pairs_proposed"
    shaped = grade(x.rewards_NK, x.valid_N, x, reward="accuracy", checks=CHECKS)
    assert shaped[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert shaped[:3, 1].tolist() == [1.0, 0.0, 1.0], "other columns stay"


def test_verifier_pairs_proposed_length():
    rows = [(1.0, 1.0, 0.0)] * 4
    cut = torch.tensor([False, True, False, False])
    x = step(rows, [0] * 4, length_N=torch.tensor([20, 20, 4, 12]), truncated_N=cut)
    # the lower median of the right ones is 12: below 6 is too short
    assert grade(x.rewards_NK, x.valid_N, x, reward="accuracy")[:, 0].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert grade(x.rewards_NK, x.valid_N, x, reward="accuracy", shortest=0.0)[:, 0].tolist() == [1.0, 0.0, 1.0, 1.0]


def test_verifier_pairs_proposed_refuses_its_arguments():
    x = step([(1.0, 1.0, 0.0)], [0])
    with pytest.raises(ValueError, match="shortest"):
        keep_pairs(x, shortest=2.0)
    with pytest.raises(ValueError, match="no reward column 'other'"):
        grade(x.rewards_NK, x.valid_N, x, reward="accuracy", checks={"other": 1.0})
