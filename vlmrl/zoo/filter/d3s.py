"""D3S's sample level: of each group the rollouts whose advantages differ most. arXiv:2509.22115.

From each group the rows with the largest variance of advantages, which for advantages that are linear in the reward within a group are
those with the largest variance of rewards (`filter.pods.widest` finds them exactly). The share of the group that is kept runs linearly
from `start` to `end` over the stage. Unlike `pods`, advantages are those of the whole group and are not computed again. Ours: the two
shares (the paper's were not to be found); a group without variance is dropped; rows that were not sampled stay and do not count.
"""

from __future__ import annotations

import math

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import rollout_filter
from vlmrl.zoo.filter.pods import widest


@rollout_filter("d3s", paper="arXiv:2509.22115", needs=("progress",), unit="rollout", drops_flat_groups=True)
def d3s(x: AdvantageInputs, *, start: float = 0.25, end: float = 1.0) -> tuple[Tensor, str]:
    """Keep the share of each group's rows with the largest variance; a share that grows over the stage.

    Raises:
        ValueError: a share outside (0, 1].
    """
    if not (0 < start <= 1 and 0 < end <= 1):
        raise ValueError(f"filter 'd3s': start is {start} and end {end}; both must be in (0, 1]")
    share = start + (end - start) * float(need(x, "progress", "filter 'd3s'"))
    counted_N = x.valid_N & x.on_policy_N
    kept_N = ~segments.flat(x.reward_N, x.group_N, counted_N)
    for group in sorted({int(g) for g in x.group_N[counted_N & kept_N]}):
        member_N = x.group_N == group
        places = (member_N & counted_N).nonzero()[:, 0]
        keep = max(2, math.ceil(share * len(places) - 1e-9))
        if keep < len(places):
            kept_N[member_N & x.on_policy_N] = False
            kept_N[places[widest(x.reward_N[places], keep)]] = True
    return kept_N, "d3s"
