"""algo.group_loss.trpa_proposed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.zoo.group_loss.trpa_proposed import trpa_proposed


def value(score, adv, group=None, **arguments):
    of = torch.zeros(len(score), dtype=torch.int64) if group is None else torch.tensor(group)
    return trpa_proposed(torch.as_tensor(score, dtype=torch.float64), torch.tensor(adv).double(), of, **{"kl": 0.0, **arguments})


def test_trpa_proposed_by_hand():
    # a gap of 0.2 with a right winner: h = 0.1 * 2.5 * 0.2 = 0.05
    assert float(value([0.2, 0.0], [1.0, -1.0])) == pytest.approx(0.66846, abs=1e-5)
    assert float(value([0.2, 0.0], [-0.5, -1.0])) == pytest.approx(0.68320, abs=1e-5), "a winner that is wrong: k = 1"


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.floats(-5, 5))
def test_trpa_proposed_looks_at_differences_only(score, shift):
    adv = [1.0, 0.2, -1.2]
    assert float(value(score, adv)) == pytest.approx(float(value([s + shift for s in score], adv)))


def test_trpa_proposed_ties_and_groups_make_no_pairs():
    assert float(value([0.2, 0.0], [1.0, 1.0])) == 0.0
    assert float(value([0.2, 0.0], [1.0, -1.0], group=[0, 1])) == 0.0


def test_trpa_proposed_has_a_trust_region():
    kl, tokens = torch.tensor([3.0, 1.0]).double(), torch.tensor([2, 2])
    assert float(value([0.0, 0.0], [1.0, 1.0], kl=0.001, kl_N=kl, tokens_N=tokens)) == pytest.approx(0.001)
    with pytest.raises(ValueError, match="kl_N"):
        value([0.0], [1.0], kl=0.001)
    with pytest.raises(ValueError, match="beta"):
        value([0.0], [1.0], beta=0.0)
