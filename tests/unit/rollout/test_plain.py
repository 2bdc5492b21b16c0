"""rollout.strategy.plain."""

from __future__ import annotations

from tests.support.builders import group
from vlmrl.rollout.strategy.plain import plain


def test_plain():
    mine = group(["a", "b"])
    assert plain().sampled(8) == 8
    assert plain().complete(mine, lambda g: [], lambda text: []) is mine
