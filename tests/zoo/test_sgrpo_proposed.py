"""Advantage `sgrpo_proposed`: rollouts by reward, sets by diversity."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.advantage.rloo import rloo
from vlmrl.zoo.advantage.sgrpo_proposed import contributions, sgrpo_proposed, shares


def of(rewards, answers):
    return dataclasses.replace(inputs([(r, 0, True) for r in rewards]), answer_N=torch.tensor(answers))


def test_sgrpo_proposed_mixes_as_in_the_spec():
    # u [[1, 0], [1, 1]] gives A_roll [1/3, -1, 1/3, 1/3]; diversities 1/2 and 1 give A_set -1/2 and 1/2, and all members add alike
    out = sgrpo_proposed(of([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 2]))
    assert out.tolist() == pytest.approx([0.5 / 3 - 0.25, -0.5 - 0.25, 0.5 / 3 + 0.25, 0.5 / 3 + 0.25])


def test_sgrpo_proposed_shares_of_the_authors_code():
    more = shares(torch.tensor([0.4, 0.1], dtype=torch.float64), 1.0)
    assert more.tolist() == pytest.approx([1.6086, 0.3914], abs=1e-4)
    assert (0.4 * more).tolist() == pytest.approx([0.6435, 0.1565], abs=1e-4)
    less = shares(torch.tensor([0.4, 0.1], dtype=torch.float64), -1.0)
    assert (-0.4 * less).tolist() == pytest.approx([-0.1565, -0.6435], abs=1e-4)


def test_sgrpo_proposed_pays_the_member_that_makes_its_set_diverse():
    assert contributions(torch.tensor([0, 0, 1])).tolist() == pytest.approx([2 / 3 - 1, 2 / 3 - 1, 2 / 3 - 1 / 2])
    out = sgrpo_proposed(of([1.0] * 6, [0, 0, 1, 2, 2, 2]))
    assert out[2] > out[0] == out[1] > 0, "of a set that is more diverse than the other"
    assert out[:3].mean().item() == pytest.approx(0.5 * (2 / 3 - 1 / 3))
    assert out[3:].tolist() == pytest.approx([-1 / 6] * 3)


def test_sgrpo_proposed_without_weight_is_leave_one_out():
    x = of([1.0, 0.0, 0.5, 1.0], [0, 0, 1, 2])
    assert torch.equal(sgrpo_proposed(x, weight=0.0), rloo(x).double())


def test_sgrpo_proposed_counts_the_unparsed_one_each_and_leaves_odd_groups_alone():
    assert sgrpo_proposed(of([1.0] * 4, [-1, -1, 0, 0])).tolist() == [0.25, 0.25, -0.25, -0.25]
    assert sgrpo_proposed(of([1.0] * 5, [-1, -1, 0, 0, 0])).tolist() == [0.0] * 5
    assert sgrpo_proposed(of([1.0] * 6, [0, 1, 0, 0, 0, 0]), sets=3).tolist() == pytest.approx([0.25, 0.25, -0.125, -0.125, -0.125, -0.125])


@pytest.mark.parametrize("wrong", [{"sets": 1}, {"weight": 1.5}, {"temperature": 0.0}])
def test_sgrpo_proposed_refuses(wrong):
    with pytest.raises(ValueError, match="sgrpo_proposed"):
        sgrpo_proposed(of([1.0, 0.0], [0, 0]), **wrong)
