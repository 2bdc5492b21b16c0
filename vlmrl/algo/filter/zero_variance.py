"""Drop groups whose sampled rows all have the same reward. DAPO's dynamic sampling, arXiv:2503.14476, section 3.2.

Only valid on-policy rows count: a ground-truth row must not make a group look mixed. Ours: "the same" is `segments.flat`, not bit
equality, so that sums of columns that differ in the last bit (0.1 + 0.2 against 0.3) do not keep a group whose advantages are all 0.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import rollout_filter


@rollout_filter("zero_variance", paper="arXiv:2503.14476", drops_flat_groups=True, sampled_rows_only=True)
def zero_variance(x: AdvantageInputs) -> tuple[Tensor, str]:
    """Keep groups with at least two different on-policy rewards.

    Returns:
        (rows to keep [N] bool, reason).
    """
    counted_N = x.valid_N & x.on_policy_N
    return ~segments.flat(x.reward_N, x.group_N, counted_N), "zero_variance"
