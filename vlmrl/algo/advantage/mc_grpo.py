"""MC-GRPO: group median instead of group mean. arXiv:2601.22582, with the authors' code.

A_i = (r_i - b) / (MAD + epsilon), b the lower median of the group and MAD the lower median of |r - b|. A single outlier moves neither
much. The paper samples G + 1 rollouts (an odd number) and leaves the pivot, the one whose reward is b, out of the update: roll out
one more per prompt and add the selection `mc_grpo_pivot`; without it the pivot trains with advantage 0 and counts in the reducer.

Ours: rewards of 0 and 1 nearly always have MAD 0, where the released form gives 1 / epsilon = 1000; here the group's sample deviation
takes the place of a MAD that is 0 up to rounding (`segments.FLAT`). Rewards within that of the median get exactly 0. A flat group
gets exactly 0; unjudged rollouts get 0 and enter no statistic. One released script rescales the non-zero advantages by group size
over their number; this does not. Of several rollouts at the median the first is the pivot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage, rollout_filter
from vlmrl.algo.rules import names


def _trains_on_its_pivot(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if "mc_grpo_pivot" not in names(stage, "filters"):
        yield "advantage 'mc_grpo' without filter 'mc_grpo_pivot' trains on its pivot with advantage 0, a row that could be left out"


@advantage("mc_grpo", paper="arXiv:2601.22582", scale="deviation", doubts=_trains_on_its_pivot)
def mc_grpo(x: AdvantageInputs, *, epsilon: float = 1e-3) -> Tensor:
    """Divide reward minus group median by the median absolute deviation.

    Returns:
        [N] float64, without gradient.
    """
    median_N = centre.median(x.reward_N, x.group_N, x.valid_N)
    distance_N = (x.reward_N - median_N).abs()
    # the scale of `segments.flat`: what counts as rounding grows with the rewards
    largest_N = segments.maximum(x.reward_N.abs(), x.group_N, x.valid_N).clamp(min=1)
    mad_N = centre.median(distance_N, x.group_N, x.valid_N)
    std_N = segments.std(x.reward_N, x.group_N, x.valid_N, ddof=1)
    scale_N = torch.where(mad_N > segments.FLAT * largest_N, mad_N, std_N)
    out_N = centre.centre_scale(x, baseline_N=median_N, scale_N=scale_N, epsilon=epsilon)
    return centre.only(out_N, distance_N > segments.FLAT * largest_N)


def pivot(x: AdvantageInputs) -> Tensor:
    """Find the one rollout per group whose reward is the group's lower median, the first where several are.

    Returns:
        [N] bool.
    """
    at_N = x.valid_N & (x.reward_N == centre.median(x.reward_N, x.group_N, x.valid_N))
    # the least place among those at the median: one pivot per group, also with ties
    place_N = torch.arange(len(at_N), dtype=torch.float64)
    return at_N & (segments.minimum(place_N, x.group_N, at_N) == place_N)


@rollout_filter("mc_grpo_pivot", paper="arXiv:2601.22582", unit="rollout")
def mc_grpo_pivot(x: AdvantageInputs) -> tuple[Tensor, str]:
    """Leave the median rollout of each group out of the update.

    Returns:
        (rows to keep [N] bool, reason).
    """
    return ~pivot(x), "mc_grpo_pivot"
