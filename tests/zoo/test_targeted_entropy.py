"""Constraint `targeted_entropy`."""

from __future__ import annotations

import pytest
import torch

from tests.support.losses import loss_inputs
from vlmrl.zoo.constraint.targeted_entropy import measure, targeted_entropy, term

ROWS = [[(1.0, 1.0), (1.0, 1.0)], [(1.0, 1.0)]]


def penalty(entropies) -> tuple[float, list[list[float]]]:
    """(the added loss by its definition, gradient by the entropies)."""
    leaf = torch.tensor(entropies, dtype=torch.float64, requires_grad=True)
    x = loss_inputs(ROWS, entropy_BT=leaf)
    seen = measure(x)
    dual = targeted_entropy(targeted_entropy({}, {}), seen)
    (gradient,) = torch.autograd.grad(term(x, dual, seen).sum(), leaf, allow_unused=True)
    return 0.001 * abs(seen["entropy"].mean - 0.55), [] if gradient is None else gradient.tolist()


@pytest.mark.parametrize(("level", "value", "slope"), [(0.3, 0.00025, -1), (1.0, 0.00045, 1)])
def test_targeted_entropy_by_hand(level, value, slope):
    loss, gradient = penalty([[level, level], [level, 99.0]])
    assert loss == pytest.approx(value)
    each = slope * 0.001 / 3
    assert gradient == [pytest.approx([each, each]), pytest.approx([each, 0.0])]


def test_targeted_entropy_rests_on_its_target():
    x = loss_inputs([[(1.0, 1.0)]], entropy_BT=torch.tensor([[0.5]]))
    seen = measure(x)
    assert term(x, targeted_entropy({}, seen, target=0.5), seen).tolist() == [[0.0]]
    assert targeted_entropy({}, {}) == {"entropy": 0.0}
    with pytest.raises(ValueError, match="weight"):
        targeted_entropy({}, {}, weight=-1.0)
