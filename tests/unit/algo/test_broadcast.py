"""algo.credit.broadcast."""

from __future__ import annotations

import torch

from tests.support.builders import inputs
from vlmrl.algo.credit.broadcast import broadcast


def test_broadcast():
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    out = broadcast(inputs([(0.0, 0, True)] * 3), torch.tensor([1.5, 2.0, -3.0]), mask)
    assert out.tolist() == [[1.5, 1.5, 0.0], [0.0, 0.0, 0.0], [-3.0, 0.0, -3.0]]
