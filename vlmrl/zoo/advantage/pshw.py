"""Policy-specific hardness weighting of Confucius3-Math: hard prompts weigh more. arXiv:2506.18330, the technical report.

    A_i = (R_i - mu) * D,  D = 1.256 - 0.256 * mu,  mu = mean_g R,  R in {-1, 1}

so D runs from 1 for a group that is nearly solved to 1.512 for one that nearly fails. No division by a deviation. The report's other
parts: clip-higher, groups without signal dropped, and a pull of the entropy to a target (constraint `targeted_entropy`).
Ours: rewards between `low` and `high` are mapped linearly to [-1, 1], and mu is held there; a flat group gets exactly 0, unjudged
rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("pshw", paper="arXiv:2506.18330", weighs_difficulty=True)
def pshw(x: AdvantageInputs, *, low: float = 0.0, high: float = 1.0, slope: float = 0.256) -> Tensor:
    """Reward minus group mean, times a factor that grows with the group's share of failures. `low`, `high`: worst and best reward.

    Raises:
        ValueError: `high` is not above `low`, or a slope outside [0, 1).
    """
    if high <= low or not 0 <= slope < 1:
        raise ValueError(f"advantage 'pshw': needs low {low} < high {high} and slope {slope} in [0, 1)")
    scaled_N = 2 * (x.reward_N - low) / (high - low) - 1
    mean_N = segments.mean(scaled_N, x.group_N, x.valid_N)
    return centre.only((scaled_N - mean_N) * (1 + slope - slope * mean_N.clamp(-1, 1)), centre.live(x))
