"""RLTF-SD's baseline: every answer against the mean reward of the first turn. arXiv:2602.02482.

    A_i = r_i - mean over the group's rows that the policy sampled from the plain question

Answers that were made after feedback (rows of the strategy `rltf_sd`) earn what they are better than first answers. A mean over the
second turn would leave no signal where feedback helps nearly always. Ours: a group without a judged first answer gets 0; first answers
train too, against the same mean.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.centre import centre_scale
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("rltf_sd", paper="arXiv:2602.02482", moves_signs=True)
def rltf_sd(x: AdvantageInputs) -> Tensor:
    """Reward minus the mean reward of the group's rows without a hint or feedback. One number per rollout, [N]."""
    first_N = x.valid_N & x.on_policy_N
    some_N = segments.count(x.group_N, first_N) > 0
    out_N = centre_scale(x, baseline_N=segments.mean(x.reward_N, x.group_N, first_N))
    return out_N * some_N.to(out_N.dtype)
