"""algo.ratio: reducers on the token losses [1] and [2, 2, 2]."""

from __future__ import annotations

import pytest
import torch

from vlmrl.algo.ratio import fixed_length, seq_mean, seq_sum, token_mean

LOSS = torch.tensor([[1.0, 99, 99], [2, 2, 2], [99, 99, 99]], dtype=torch.float64)
MASK = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])


def value(found) -> float:
    return float((LOSS * found.weight_BT).sum() / found.count)


def test_seq_mean():
    assert value(seq_mean(MASK)) == pytest.approx(1.5, abs=1e-12)
    assert float(seq_mean(MASK).count) == 2


def test_token_mean():
    assert value(token_mean(MASK)) == 1.75
    assert float(token_mean(MASK).count) == 4


def test_fixed_length():
    assert value(fixed_length(MASK, length=4)) == 0.875
    with pytest.raises(ValueError, match="length is 0"):
        fixed_length(MASK, length=0)


def test_seq_sum():
    assert value(seq_sum(MASK)) == 3.5
    assert float(seq_sum(MASK).count) == 2
