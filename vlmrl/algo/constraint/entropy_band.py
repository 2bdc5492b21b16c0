"""OpenVLThinkerV2's entropy regulariser: each task's mean token surprise stays within a band. arXiv:2604.08539, eq. 10.

    H_t = mean over the task's response tokens of -log pi(y)
    L = L_policy + weight * sum_t [max(0, H_t - high) + max(0, low - H_t)]

The band [0.2, 0.6] and the weight 0.02 are the released constants. H is the surprise of the sampled tokens, not the entropy over the
vocabulary; its gradient raises (H too high) or lowers (H too low) the log-probability of those tokens.

Ours: H is taken over the whole minibatch of all ranks; the released code takes it per micro-batch, and charges tasks that are absent
from it the constant `low`. A band is not differentiable at its borders: on them the slope is 0.

Nothing is remembered from step to step: the dual is the slope per task, weight * (1, 0 or -1), for one update. The trainer measures H
under the weights that the update starts from (`measure`, added over micro-batches and ranks with `merge`), calls `entropy_band`, and
adds the sum of `term` over each micro-batch to the reduced policy loss: as H enters through its slope alone, this has the gradient of
the formula. For the value, log `penalty`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vlmrl.algo.constraint.registry import PartialMean, constraint
from vlmrl.algo.inputs import LossInputs


def measure(logp_BT: Tensor, mask_BT: Tensor, task_B: Tensor, tasks: Sequence[str]) -> dict[str, PartialMean]:
    """Sum the surprise of the tokens within the mask, task by task. `task_B`: index into `tasks`.

    Returns:
        Sum in nats and count by task, of those that have any.
    """
    surprise_B = torch.where(mask_BT, -logp_BT.detach(), torch.zeros_like(logp_BT)).double().sum(dim=1)
    tokens_B = mask_BT.sum(dim=1)
    out: dict[str, PartialMean] = {}
    for index, name in enumerate(tasks):
        own_B = task_B == index
        if int(tokens_B[own_B].sum()):
            out[name] = PartialMean(float(surprise_B[own_B].sum()), int(tokens_B[own_B].sum()))
    return out


def penalty(measured: Mapping[str, PartialMean], *, low: float = 0.2, high: float = 0.6, weight: float = 0.02) -> float:
    """Compute the value of the regulariser."""
    return weight * sum(max(0.0, m.mean - high) + max(0.0, low - m.mean) for m in measured.values() if m.count)


def term(
    logp_BT: Tensor, mask_BT: Tensor, task_B: Tensor, tasks: Sequence[str], slopes: Mapping[str, float], measured: Mapping[str, PartialMean]
) -> Tensor:
    """Compute a loss whose plain sum over all micro-batches and ranks has the regulariser's gradient.

    Each token of a task contributes -slope * logp / (tokens of the task in the whole minibatch). Not to be divided again by a reducer;
    where gradients are averaged over ranks, multiply by their number.

    Returns:
        [B, T] loss; 0 outside the mask.
    """
    # d(weight * penalty)/d(logp) of a token is -slope / tokens of its task in the whole minibatch
    scale = [slopes.get(name, 0.0) / measured[name].count if name in measured and measured[name].count else 0.0 for name in tasks]
    scale_B = torch.tensor(scale, dtype=logp_BT.dtype, device=logp_BT.device)[task_B]
    return torch.where(mask_BT, -logp_BT, torch.zeros_like(logp_BT)) * scale_B[:, None]


def measure_minibatch(x: LossInputs) -> dict[str, PartialMean]:
    """Call `measure` on a whole minibatch of this rank, as the trainer asks for it."""
    assert x.task_B is not None
    return measure(x.logp_BT, x.mask_BT, x.task_B, x.tasks)


def term_of(x: LossInputs, slopes: Mapping[str, float], measured: Mapping[str, PartialMean]) -> Tensor:
    """Call `term` on a micro-batch, as the trainer asks for it.

    Returns:
        [B, T] loss; 0 outside the mask.
    """
    assert x.task_B is not None
    return term(x.logp_BT, x.mask_BT, x.task_B, x.tasks, slopes, measured)


@constraint("entropy_band", paper="arXiv:2604.08539", acts_on="loss", measure=measure_minibatch, term=term_of)
def entropy_band(
    dual: Mapping[str, float], measured: Mapping[str, PartialMean], *, low: float = 0.2, high: float = 0.6, weight: float = 0.02
) -> dict[str, float]:
    """Keep each task's surprise within a band: slopes of `weight` above it, -`weight` below, 0 within. `dual` is not read.

    Returns:
        Slope of the penalty by task; absent tasks have none.
    """
    if low > high or weight < 0:
        raise ValueError(f"constraint 'entropy_band': needs low {low} <= high {high} and weight {weight} >= 0")
    # strict comparisons: on the borders of the band the slope is 0
    return {name: weight * ((m.mean > high) - (m.mean < low)) for name, m in sorted(measured.items()) if m.count}
