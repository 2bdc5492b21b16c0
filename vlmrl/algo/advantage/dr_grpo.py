"""Dr. GRPO: reward minus group mean, without division by the deviation. arXiv:2503.20783, section 3.2.

A_i = r_i - mean_g. The method's other half is the reducer: sum over tokens by a constant, the longest allowed answer
(`fixed_length`); with a mean over each answer's own tokens the length bias that the paper removes is back. The paper keeps no KL.
Ours: a flat group (see `segments.flat`) gets exactly 0; unjudged rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.advantage.centre import centre_scale
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage(
    "dr_grpo",
    paper="arXiv:2503.20783",
    wants={"reduce": ("fixed_length", "token_mean", "seq_sum")},
    wants_why="a mean over each answer's own tokens brings back the length bias that the paper removes",
)
def dr_grpo(x: AdvantageInputs) -> Tensor:
    """Subtract the group mean from the reward.

    Returns:
        [N] float64, without gradient.
    """
    return centre_scale(x)
