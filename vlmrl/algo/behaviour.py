"""Old log-probs of rows whose ratio is taken against what sampled them, and the watch over that ratio.

Replayed rows are divided by the log-probs that were stored with them, and the rows of Guide (arXiv:2506.13923) by those under the
guidance: rho_t = pi_theta(y_t | q, y_<t) / pi_old(y_t | q, guidance, y_<t), so that it is not 1 at the start, and tiny for tokens that
the guidance made likely. All other rows: the policy before the update, under the prompt that they train under.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


def old_logprobs(given_NT: Tensor, logp_NT: Tensor) -> Tensor:
    """Take the log-probs that were given with the rows where they are finite, elsewhere `logp` without gradient.

    Returns:
        [N, T] in the type of `logp`: that of the current policy in the first update of a batch, else what was recomputed before it.
    """
    return torch.where(given_NT.isfinite(), given_NT.to(logp_NT.dtype), logp_NT.detach())


def mean_log_ratio(logp_NT: Tensor, old_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Average logp - old over each row's tokens.

    Returns:
        [N] float64, in nats; 0 for a row without tokens.
    """
    gap_NT = torch.where(mask_NT, logp_NT.detach().double() - old_NT.double(), torch.zeros_like(logp_NT, dtype=torch.float64))
    return gap_NT.sum(dim=1) / mask_NT.sum(dim=1).clamp(min=1)


def mean_ratio(logp_NT: Tensor, old_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Average rho over each row's tokens. Log-ratios are cut at 20.

    Returns:
        [N] float64; 0 for a row without tokens.
    """
    gap_NT = torch.where(mask_NT, logp_NT.detach().double() - old_NT.double(), torch.zeros_like(logp_NT, dtype=torch.float64))
    # cut before exp: one token that the policy has given up would fill the mean
    rho_NT = torch.where(mask_NT, gap_NT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), torch.zeros_like(gap_NT))
    return rho_NT.sum(dim=1) / mask_NT.sum(dim=1).clamp(min=1)


def out_of_reach(logp_NT: Tensor, old_NT: Tensor, mask_NT: Tensor, given_N: Tensor, *, least: float = -2.0) -> Tensor:
    """Find rows among `given_N` that the policy finds too unlikely without help to learn from: mean log-ratio below `least`.

    Ours, with the bound: such a row's tokens have next to no gradient, or all of it in a few.

    Returns:
        [N] bool.
    """
    return given_N & (mean_log_ratio(logp_NT, old_NT, mask_NT) < least)
