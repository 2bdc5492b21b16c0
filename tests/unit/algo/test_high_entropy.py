"""Training on the tokens of highest entropy only."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.reweight.high_entropy import high_entropy


def of(entropies, lengths):
    base = inputs([(float(n), 0, True) for n in range(len(lengths))])
    return dataclasses.replace(base, entropy_NT=torch.tensor(entropies), length_N=torch.tensor(lengths))


def test_high_entropy_by_hand():
    # five tokens; the padding has the largest "entropy" and counts nowhere
    x = of([[0.1, 0.9, 0.3], [0.8, 0.2, 99.0]], [3, 2])
    adv = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
    assert high_entropy(x, adv, share=0.4).tolist() == [[0.0, 1.0, 0.0], [-2.0, 0.0, 0.0]]
    assert high_entropy(x, adv, share=0.2).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert torch.equal(high_entropy(x, adv, share=1.0), adv)
    assert high_entropy(x, adv, share=0.01)[0, 1] == 1.0, "at least one token trains"


def test_high_entropy_keeps_ties_together():
    x = of([[0.5, 0.5, 0.5, 0.1]], [4])
    assert high_entropy(x, torch.ones(1, 4), share=0.25).tolist() == [[1.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_high_entropy_refuses_a_share_out_of_range(share):
    with pytest.raises(ValueError, match="high_entropy"):
        high_entropy(of([[0.1]], [1]), torch.ones(1, 1), share=share)


def test_high_entropy_says_what_it_needs():
    with pytest.raises(ValueError, match="needs entropy_NT"):
        high_entropy(inputs([(1.0, 0, True)]), torch.ones(1, 1))
