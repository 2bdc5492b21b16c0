"""advantage himac_proposed: plans among plans, executions among those of their plan."""

from __future__ import annotations

import pytest

from tests.support.attempts import branched
from vlmrl.algo.advantage.himac_proposed import himac_proposed

PLANS = [("ax", 1.0), ("ay", 0.0), ("bx", 0.0), ("by", 0.0), ("cz", 1.0), ("cw", 1.0)]
"""Three plans with two executions each."""


def test_plans_and_executions_by_hand() -> None:
    x = branched(*PLANS)
    # plans .5, 0, 1: mean .5, sample deviation .5, so 0, -1, 1, halved on the two rows of each; executions of a: 1, 0 -> +-.7071
    macro = [0.0, 0.0, 0.0, 0.0, -0.5, 0.0, -0.5, 0.0, 0.5, 0.0, 0.5, 0.0]
    micro = [0.0, 0.70711, 0.0, -0.70711] + [0.0] * 8
    assert himac_proposed(x, role="macro").tolist() == pytest.approx(macro, abs=1e-5)
    assert himac_proposed(x, role="micro").tolist() == pytest.approx(micro, abs=1e-5)
    assert himac_proposed(x).tolist() == pytest.approx([a + b for a, b in zip(macro, micro, strict=True)], abs=1e-5)


def test_no_difference_teaches_nothing() -> None:
    assert himac_proposed(branched(("ax", 1.0), ("ay", 1.0), ("bx", 1.0))).tolist() == [0.0] * 6
