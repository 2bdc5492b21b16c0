"""algo.loss.p3o_proposed."""

from __future__ import annotations

import pytest

from tests.support.builders import inputs
from tests.support.losses import coefficients, loss_inputs
from vlmrl.algo.advantage.rloo import rloo
from vlmrl.zoo.loss.p3o_proposed import p3o_proposed


def test_p3o_proposed_has_the_ratio_of_the_whole_answer():
    # 1.1 * 1.05 = 1.155 is inside, 1.1 * 1.2 = 1.32 is clipped for A > 0 only
    x = loss_inputs([[(1.1, 1.0), (1.05, 1.0)], [(1.1, 1.0), (1.2, 1.0)], [(1.1, -1.0), (1.2, -1.0)]])
    found = coefficients(p3o_proposed, x)
    assert found[0] == pytest.approx([1.155, 1.155])
    assert found[1] == [0.0, 0.0]
    assert found[2] == pytest.approx([-1.32, -1.32])


def test_p3o_proposed_goes_with_pairwise_differences():
    rewards = [1.0, 0.0, 0.5, 0.0]
    pairs = [sum(a - b for b in rewards) / 3 for a in rewards]
    assert pairs == pytest.approx([0.8333, -0.5, 0.1667, -0.5], abs=1e-4)
    assert rloo(inputs([(r, 0, True) for r in rewards])).tolist() == pytest.approx(pairs)
