"""Reweightings `gtpo` and `gtpo_entropy`."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.gtpo import beginning, gtpo, gtpo_entropy


def of(ids, groups=None):
    width = max(map(len, ids))
    padded = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    base = inputs([(1.0, g, True) for g in (groups or [0] * len(ids))])
    return dataclasses.replace(base, ids_NT=padded, length_N=torch.tensor([len(row) for row in ids]))


def spread(adv, x):
    return torch.tensor(adv)[:, None].expand(x.provided["ids_NT"].shape).clone()


def test_gtpo_by_hand():
    x = of([[5, 6, 7, 9], [5, 6, 8, 9], [5, 4, 7, 9]])
    out = gtpo(x, spread([1.0, 1.0, -1.0], x))
    assert out.tolist() == [[2.0, 1.0, 2.0, 2.0], [2.0, 1.0, 1.0, 2.0], [0.0, -1.0, 0.0, 0.0]]


def test_gtpo_aligns_the_ends():
    x = of([[1, 2, 9], [3, 9]])
    assert gtpo(x, spread([1.0, -1.0], x))[:, :2].tolist() == [[1.0, 1.0], [-1.0, 0.0]]
    assert gtpo(x, spread([1.0, -1.0], x))[0, 2] == 2.0


def test_gtpo_needs_both_signs_of_one_group():
    same = of([[5, 6], [5, 6]])
    assert torch.equal(gtpo(same, spread([1.0, 2.0], same)), spread([1.0, 2.0], same))
    apart = of([[5, 6], [5, 6]], groups=[0, 1])
    assert torch.equal(gtpo(apart, spread([1.0, -2.0], apart)), spread([1.0, -2.0], apart))


def test_gtpo_entropy_by_hand():
    x = dataclasses.replace(of([[1, 2], [1, 2], [1]]), entropy_NT=torch.tensor([[0.1, 0.3], [0.9, 0.7], [0.5, 99.0]]))
    out = gtpo_entropy(x, torch.tensor([1.0, 1.0, -1.0]).double())
    assert out.tolist() == pytest.approx([1 - 0.02, 0.0, -1 - 0.05])
    assert math.log(2) > 0.5


def test_a_policy_that_begins_above_the_bound_is_not_filtered():
    """Else it would have no advantage left: with a mean entropy of 0.9 in its first step, two of three answers are above ln 2."""
    x = dataclasses.replace(of([[1, 2], [1, 2], [1]]), entropy_NT=torch.tensor([[0.1, 0.3], [1.9, 1.1], [1.0, 99.0]]))
    adv = torch.tensor([1.0, 1.0, -1.0]).double()
    first = gtpo_entropy(dataclasses.replace(x, memory={}), adv)
    assert first.tolist() == pytest.approx([1 - 0.02, 1 - 0.15, -1 - 0.1])
    state = beginning({}, x)
    assert state == {"began": pytest.approx((0.2 + 1.5 + 1.0) / 3)}
    later = dataclasses.replace(x, entropy_NT=x.provided["entropy_NT"] / 10)
    assert beginning(state, later) == state, "where it began, and not where it is"
    assert gtpo_entropy(dataclasses.replace(x, memory={"began": torch.tensor(0.5)}), adv).tolist() == pytest.approx([1 - 0.02, 0.0, 0.0])


def test_gtpo_entropy_leaves_unjudged_rollouts_at_0():
    x = dataclasses.replace(inputs([(1.0, 0, False)]), entropy_NT=torch.tensor([[0.1, 0.1, 0.1]]))
    assert gtpo_entropy(x, torch.zeros(1)).tolist() == [0.0]
    with pytest.raises(ValueError, match="bound"):
        gtpo_entropy(x, torch.zeros(1), bound=0.0)
