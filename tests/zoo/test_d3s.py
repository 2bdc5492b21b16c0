"""D3S: filter `d3s` and reweighting `d3s_tokens`."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.filter.d3s import d3s
from vlmrl.zoo.reweight.d3s_tokens import d3s_tokens

VALUES = [2.0, 0.5, 0.4, -0.1, -0.6, -2.2]


def test_d3s_by_hand():
    x = inputs([(v, 0, True) for v in VALUES])
    keep, reason = d3s(x, start=0.5)
    assert (keep.tolist(), reason) == ([True, True, False, False, False, True], "d3s")
    assert float(torch.tensor(VALUES)[keep].var(unbiased=False)) == pytest.approx(3.02, abs=0.01)
    assert d3s(dataclasses.replace(x, progress=1.0), start=0.5)[0].all()


def test_d3s_drops_groups_without_variance_and_keeps_given_rows():
    x = inputs([(1.0, 0, True), (1.0, 0, True), *[(v, 1, True) for v in VALUES], (9.0, 1, True)], off_policy=[8])
    keep, _ = d3s(x, start=0.25)
    assert keep[:2].tolist() == [False, False]
    assert bool(keep[8])
    assert int(keep[2:8].sum()) == 2
    with pytest.raises(ValueError, match="d3s"):
        d3s(x, start=0.0)


def test_d3s_tokens_by_hand():
    x = dataclasses.replace(
        inputs([(1.0, 0, True), (0.0, 0, True)]),
        entropy_NT=torch.tensor([[0.1, 0.9, 0.5], [0.4, 0.2, 99.0]]),
        length_N=torch.tensor([3, 2]),
    )
    adv = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
    # |A| H = .1, .9, .5, .8, .4: two of five
    assert d3s_tokens(x, adv, start=0.4, end=0.4).tolist() == [[0.0, 1.0, 0.0], [-2.0, 0.0, 0.0]]
    assert torch.equal(d3s_tokens(dataclasses.replace(x, progress=1.0), adv), adv)
    with pytest.raises(ValueError, match="d3s_tokens"):
        d3s_tokens(x, adv, start=2.0)
