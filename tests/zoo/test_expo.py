"""Auxiliary loss `expo`."""

from __future__ import annotations

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, metric
from vlmrl.zoo.auxiliary.expo import expo


def test_expo_imitates_injected_rows_only():
    x = loss_inputs([[(1.0, 1.0), (2.0, -1.0)], [(1.0, 1.0)]], [[-0.5, -2.0], [-1.0]], offpolicy_B=torch.tensor([True, False]))
    loss = expo(x).loss_BT
    assert loss.tolist() == [[0.5, 2.0], [0.0, 0.0]]
    assert coefficients(expo, x) == [[1.0, 1.0], [0.0]]
    assert metric(expo, x, "tokens") == (2.0, 1.0)
    with pytest.raises(ValueError, match="offpolicy_B"):
        expo(loss_inputs([[(1.0, 1.0)]]))
