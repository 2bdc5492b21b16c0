"""Drop groups whose sampled rows all have the same reward. DAPO's dynamic sampling, arXiv:2503.14476, section 3.2.

Exact equality of the raw reward over the valid on-policy rows: a ground-truth row must not make a group look mixed.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import select


@select("zero_variance", paper="arXiv:2503.14476")
def zero_variance(x: AdvantageInputs) -> tuple[Tensor, str]:
    """Keep groups with at least two different on-policy rewards."""
    counted_N = x.valid_N & x.on_policy_N
    keep_N = segments.maximum(x.reward_N, x.group_N, counted_N) > segments.minimum(x.reward_N, x.group_N, counted_N)
    return keep_N, "zero_variance"
