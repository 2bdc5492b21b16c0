"""A-GRAE: asymmetric group-relative advantages. arXiv:2602.05548, as in the paper's text (the released code differs).

A'_i = [(omega / 2) / sqrt(p) + ((1 - omega) / 2) / sqrt(1 - p)] * A_i, then A'_i * min(1, omega / alpha) where A'_i > 0.
A: group-relative advantage; p: mean correctness of the group; omega: mean of p over the groups of the whole batch, all ranks.
While omega is small easy prompts weigh more and right answers are damped; later hard prompts weigh more. alpha is 1 for
mathematics and 0.5 for geometry and medical images in the paper.

Ours: for graded rewards p is the mean of the correctness clipped to [0, 1], of `reward` where one is named and of the summed
reward otherwise, and is kept within [1/G, 1 - 1/G], the range that mixed groups of 0/1 rewards have; unjudged rollouts and flat
groups get exactly 0; a group that `reward` never judged is not re-weighted.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index
from vlmrl.algo.registries import advantage


@advantage("a_grae", paper="arXiv:2602.05548", weighs_difficulty=True)
def a_grae(
    x: AdvantageInputs,
    *,
    reward: str | None = None,
    alpha: float = 1.0,
    scale: Literal["group", "none"] = "group",
    epsilon: float = 1e-4,
    ddof: Literal[0, 1] = 1,
) -> Tensor:
    """Group-relative advantages, re-weighted by difficulty and damped where positive while the batch is mostly wrong.

    `reward`: 0/1 reward that says how hard a prompt is. `scale`: divide by the group's deviation (GRPO) or not (Dr. GRPO).
    """
    if alpha <= 0:
        raise ValueError(f"advantage 'a_grae': alpha is {alpha}, must be positive")
    centred_N = x.reward_N - segments.mean(x.reward_N, x.group_N, x.valid_N)
    if scale == "group":
        centred_N = centred_N / (segments.std(x.reward_N, x.group_N, x.valid_N, ddof=ddof) + epsilon)
    live_N = x.valid_N & ~segments.flat(x.reward_N, x.group_N, x.valid_N)

    correct_N = (x.reward_N if reward is None else x.rewards_NK[:, column_index(x, reward, "advantage 'a_grae'")]).double().clamp(0, 1)
    judged_N = x.valid_N & ~correct_N.isnan()
    n_N = segments.count(x.group_N, judged_N)
    p_N = segments.mean(correct_N, x.group_N, judged_N)
    # each group counts once: its members carry 1 / n each
    share_N = judged_N / n_N.clamp(min=1)
    omega = (p_N * share_N).sum() / share_N.sum().clamp(min=1)

    inner_N = p_N.clamp(min=1 / n_N.clamp(min=2)).minimum(1 - 1 / n_N.clamp(min=2))
    factor_N = omega / 2 / inner_N.sqrt() + (1 - omega) / 2 / (1 - inner_N).sqrt()
    out_N = centred_N * torch.where(n_N > 0, factor_N, torch.ones_like(factor_N))
    out_N = torch.where(out_N > 0, out_N * (omega / alpha).clamp(max=1), out_N)
    return torch.where(live_N, out_N, torch.zeros_like(out_N)).detach()
