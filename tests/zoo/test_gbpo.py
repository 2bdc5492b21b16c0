"""algo.loss.gbpo, and the median that it is given."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs
from tests.support.tiny import Tiny
from tests.unit.train.test_step import batch
from vlmrl.zoo.loss.gbpo import gbpo
from vlmrl.zoo.providers.adv_median import group_adv_median

ADV = [1.5, -0.5, -0.5, -0.5]
"""Rewards 1, 0, 0, 0 with the sample deviation; their median is -0.5."""


def of(rows):
    return loss_inputs(rows, adv_median_B=torch.full((len(rows),), -0.5).double())


def test_gbpo_by_hand():
    assert [c[0] for c in coefficients(gbpo, of([[(1.0, a)] for a in ADV]))] == pytest.approx([1.5, 0.0, 0.0, 0.0])
    # past the target of 1.3: drawn back
    assert coefficients(gbpo, of([[(1.4, 1.5)]]))[0] == pytest.approx([-2.1])
    assert coefficients(gbpo, of([[(1.1, -0.5)]]))[0] == pytest.approx([-0.55]), "a median answer stays at 1"


def test_gbpo_of_a_group_that_is_mostly_right_moves_the_wrong_answer_only():
    x = loss_inputs([[(1.0, 0.5)], [(1.0, 0.5)], [(1.0, 0.5)], [(1.0, -1.5)]], adv_median_B=torch.full((4,), 0.5).double())
    assert [c[0] for c in coefficients(gbpo, x)] == pytest.approx([0.0, 0.0, 0.0, -1.5])


def test_gbpo_refuses_its_arguments():
    with pytest.raises(ValueError, match="temperature"):
        gbpo(of([[(1.0, 1.0)]]), temperature=0.0)
    with pytest.raises(ValueError, match="adv_median_B"):
        gbpo(loss_inputs([[(1.0, 1.0)]]))


def test_gbpo_gets_the_median_of_its_group(tiny: Tiny):
    one = batch(tiny)
    levels = torch.arange(len(one.rows), dtype=torch.float32)
    found = group_adv_median(None, dataclasses.replace(one, adv_NT=levels[:, None].expand(one.mask_NT.shape)), None)["adv_median_B"]  # pyright: ignore
    groups = torch.tensor([row.group for row in one.rows])
    for group in groups.unique():
        member = groups == group
        assert found[member].tolist() == pytest.approx([float(levels[member].double().quantile(0.5))] * int(member.sum()))
