"""Drop answers that were cut off at the token limit: overlong filtering. DAPO, arXiv:2503.14476, section 3.4.

A cut-off answer may have been right; as it stands its reward is noise. The row leaves the loss. As in DAPO it still counts in its
group's statistics: selection does not change what the advantage sees.

Ours: with `max_share` below 1, a group goes altogether when more than that share of its sampled rows was cut off. Needs `truncated_N`
(registered with `needs=("truncated_N",)`); where the caller did not record it, no row is known to be cut off and all stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import rollout_filter


@rollout_filter("overlong", paper="arXiv:2503.14476", needs=("truncated_N",))
def overlong(x: AdvantageInputs, *, max_share: float = 1.0) -> tuple[Tensor, str]:
    """Drop rows that were cut off, and groups with too many of them.

    Returns:
        (rows to keep [N] bool, reason).
    """
    if not 0 <= max_share <= 1:
        raise ValueError(f"filter 'overlong': max_share {max_share} must lie in [0, 1]")
    truncated_N = x.provided.get("truncated_N")
    if truncated_N is None:
        return torch.ones_like(x.valid_N), "overlong"
    # share of the group's sampled rows that were cut off; 1e-9: one at the bound is not above it by rounding
    share_N = segments.mean(truncated_N.double(), x.group_N, x.on_policy_N)
    return ~truncated_N & (share_N <= max_share + 1e-9), "overlong"
