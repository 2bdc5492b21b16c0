"""A method from outside the package: an advantage that counts wins within the group.

    A_i = scale * (rollouts of the group that i beats - rollouts that beat i) / (n - 1)

n: the judged rollouts of the group. Only the order of the rewards matters, so a reward that is stretched or has outliers gives the same
advantages, and every one lies in [-scale, scale]. Ties, and so groups without signal, give exactly 0. It is the simplest relative of
the rank-based advantages; `docs/adding_a_method.md` walks through this file.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("win_margin")
def win_margin(x: AdvantageInputs, *, scale: float = 1.0, tie: float = 1e-6) -> Tensor:
    """Subtract the share of the group that beats a rollout from the share that it beats.

    `tie`: rewards tie when they differ by at most this, relative to the larger magnitude (or to 1). Sums of reward columns differ in
    the last bit where they should be equal, so 0 would find winners among equals.

    Returns:
        [N] float64, `scale` times the difference; 0 for unjudged rollouts.

    Raises:
        ValueError: scale not above 0, or tie below 0.
    """
    if scale <= 0 or tie < 0:
        raise ValueError(f"advantage 'win_margin': needs scale {scale} > 0 and tie {tie} >= 0")
    # rewards of unjudged rollouts are NaN
    reward_N = torch.where(x.valid_N, x.reward_N, torch.zeros_like(x.reward_N))
    size_N = reward_N.abs().clamp(min=1)
    gap_NN = reward_N[:, None] - reward_N[None, :]
    decided_NN = gap_NN.abs() > tie * torch.maximum(size_N[:, None], size_N[None, :])
    rivals_NN = (x.group_N[:, None] == x.group_N[None, :]) & x.valid_N[:, None] & x.valid_N[None, :]
    margin_N = torch.where(rivals_NN & decided_NN, gap_NN.sign(), torch.zeros_like(gap_NN)).sum(dim=1)
    return scale * margin_N / (rivals_NN.sum(dim=1) - 1).clamp(min=1)
