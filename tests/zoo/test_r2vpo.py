"""Loss `r2vpo` and constraint `ratio_variance_proposed`."""

from __future__ import annotations

import pytest

from tests.support.losses import coefficients, loss_inputs, metric, total
from vlmrl.algo.constraint.registry import PartialMean
from vlmrl.algo.inputs import LossOutput
from vlmrl.zoo.constraint.ratio_variance_proposed import measure, ratio_variance_proposed, term
from vlmrl.zoo.loss.r2vpo import r2vpo


def test_r2vpo_by_hand():
    x = loss_inputs([[(1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (3.0, 1.0)]])
    assert coefficients(r2vpo, x, weight=0.5)[0] == pytest.approx([1.0, 0.75, 0.0, -3.0])
    assert coefficients(r2vpo, x, weight=0.0)[0] == pytest.approx([1.0, 1.5, 2.0, 3.0])
    assert metric(r2vpo, x, "ratio/variance") == pytest.approx((0.25 + 1 + 4, 4))
    with pytest.raises(ValueError, match="weight"):
        r2vpo(x, weight=-1.0)


def test_ratio_variance_proposed_moves_its_multiplier():
    start = ratio_variance_proposed({}, {})
    assert start == {"multiplier": 0.0}
    more = ratio_variance_proposed(start, {"multiplier": PartialMean(0.5, 10)})
    assert more == {"multiplier": pytest.approx(0.04)}
    assert ratio_variance_proposed(more, {"multiplier": PartialMean(0.0, 10)}) == {"multiplier": pytest.approx(0.03)}
    assert ratio_variance_proposed({"multiplier": 0.001}, {"multiplier": PartialMean(0.0, 10)}) == {"multiplier": 0.0}
    assert ratio_variance_proposed(more, {}) == more, "nothing was measured"
    assert ratio_variance_proposed({"multiplier": 9.9}, {"multiplier": PartialMean(9.0, 10)}) == {"multiplier": 10.0}
    with pytest.raises(ValueError, match="delta"):
        ratio_variance_proposed({}, {}, delta=0.0)


def test_ratio_variance_proposed_is_the_penalty_of_the_loss():
    x = loss_inputs([[(1.0, 1.0), (1.5, 1.0)], [(0.5, -1.0)]])
    seen = measure(x)
    assert (seen["multiplier"].total, seen["multiplier"].count) == (pytest.approx(0.5), 3)

    def penalty(x):
        return LossOutput(term(x, {"multiplier": 0.5}, seen))

    # -d/dlogp of 0.5 * (rho - 1)^2 / 3
    assert coefficients(penalty, x) == [pytest.approx([0.0, -0.25]), pytest.approx([0.5 * 0.5 / 3])]
    assert float(total(penalty(x), x).detach()) == pytest.approx(0.5 * 0.5 / 3)
