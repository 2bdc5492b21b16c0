"""GDPO: z-score each reward column within the group, then sum. arXiv:2601.05242; TRL's `normalize_then_sum`.

Z_ik = (R_ik - mean_gk) / (std_gk + epsilon), S_i = sum_k w_k Z_ik, A_i = (S_i - mean S) / (std S + epsilon) over the rollouts of the
batch, all ranks. Summing first loses which column differed: (0, 1) and (0, 2) get the same z-scores. The scale of a column does not
matter, only its weight. Defaults as in TRL: sample deviation (ddof 1), epsilon 1e-4. `post`: "batch" is TRL's, over rollouts;
"token" weighs each rollout by its length, as the authors' verl code does; "none" leaves S. The authors use it for two columns or more.

A column that did not judge a rollout adds 0 to it and leaves it out of that column's statistics (a fork that reads it as 0 moves
the mean of the others). A column that is flat in a group adds 0.
Ours: a group whose S is flat gets exactly 0, whatever the batch's mean; groups of one, and rollouts that no column judged, do not
count in the last step.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


def weights(x: AdvantageInputs, method: str) -> Tensor:
    """Read the weights of the reward columns.

    Returns:
        [K] float64; 1 each where the inputs have none.

    Raises:
        ValueError: not one per column.
    """
    if x.weights_K is None:
        return torch.ones(x.rewards_NK.shape[1], dtype=torch.float64)
    if x.weights_K.shape != x.rewards_NK.shape[1:]:
        raise ValueError(
            f"advantage '{method}': {x.weights_K.numel()} weights for {x.rewards_NK.shape[1]} reward columns "
            f"({', '.join(x.columns)}); give one weight per column"
        )
    return x.weights_K.double()


@advantage("gdpo", paper="arXiv:2601.05242", needs=("weights_K",), scale="deviation", moves_signs=True)
def gdpo(
    x: AdvantageInputs, *, post: Literal["batch", "token", "none"] = "batch", epsilon: float = 1e-4, ddof: Literal[0, 1] = 1
) -> Tensor:
    """Sum the columns' z-scores within the group by their weights, and normalise over the batch.

    Returns:
        [N] float64, without gradient.
    """
    sum_N = torch.zeros(x.valid_N.shape, dtype=torch.float64)
    for column_N, weight in zip(x.rewards_NK.double().unbind(dim=1), weights(x, "gdpo"), strict=True):
        judged_N = x.valid_N & ~column_N.isnan()
        # Z_ik = (R_ik - mean_gk) / (std_gk + epsilon)
        z_N = column_N - segments.mean(column_N, x.group_N, judged_N)
        z_N = z_N / (segments.std(column_N, x.group_N, judged_N, ddof=ddof) + epsilon)
        sum_N = sum_N + weight * centre.only(z_N, judged_N & ~segments.flat(column_N, x.group_N, judged_N))
    live_N = x.valid_N & ~segments.flat(sum_N, x.group_N, x.valid_N)
    if post == "none":
        return centre.only(sum_N, live_N)
    # A_i = (S_i - mean S) / (std S + epsilon), over rollouts or over tokens
    share_N = x.length_N if post == "token" else torch.ones_like(x.length_N)
    counted_N = x.valid_N & (segments.count(x.group_N, x.valid_N) > 1)
    mean, variance = centre.weighted_moments(sum_N, share_N, counted_N, ddof=ddof)
    return centre.only((sum_N - mean) / (variance.sqrt() + epsilon), live_N)
