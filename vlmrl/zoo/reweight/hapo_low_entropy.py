"""HAPO's redistribution: tokens that the policy is sure of train less. arXiv:2509.16591, with the authors' code.

h = (log H - q) / rms with q the 0.8 quantile (nearest) of log H over the batch's response tokens and rms the root mean square about it;
h-hat divides the positive ones by their largest and the negative ones by minus their smallest, so that it is in [-1, 1]. While the ratio is
inside the band the authors multiply tokens with h-hat <= 0 by 1 + beta h-hat (outside it, those with h-hat > 0).

Ours: only the first half, which is all of it while the ratio is 1, as in the first update of a step. The authors' code divides the negative
ones by the smallest itself, which makes them positive; here low entropy is -1, as their text says. The batch is this rank's rows.
Entropies below 1e-8 count as that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

QUANTILE = 0.8
LEAST = 1e-8


def heterogeneity(entropy_M: Tensor) -> Tensor:
    """h-hat of a set of entropies, in [-1, 1]; 0 where all are equal. [M]"""
    log_M = entropy_M.double().clamp(min=LEAST).log()
    centred_M = log_M - log_M.quantile(QUANTILE, interpolation="nearest")
    top, bottom = centred_M.max().clamp(min=1e-300), (-centred_M.min()).clamp(min=1e-300)
    return torch.where(centred_M > 0, centred_M / top, centred_M / bottom)


@reweight("hapo_low_entropy", paper="arXiv:2509.16591", needs=("entropy_NT",), per="token")
def hapo_low_entropy(x: AdvantageInputs, adv_NT: Tensor, *, beta: float = 1.0) -> Tensor:
    """Token advantages times 1 + beta * h-hat where the entropy is below the batch's 0.8 quantile. [n, T]

    Raises:
        ValueError: beta outside [0, 1], or no entropies.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"reweight 'hapo_low_entropy': beta is {beta}; it must be in [0, 1], so that signs stay")
    entropy_NT = need(x, "entropy_NT", "reweight 'hapo_low_entropy'")[:, : adv_NT.shape[1]]
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    if not bool(inside_NT.any()):
        return adv_NT
    factor_NT = torch.ones(entropy_NT.shape, dtype=torch.float64)
    factor_NT[inside_NT] = 1 + beta * heterogeneity(entropy_NT[inside_NT]).clamp(max=0)
    return adv_NT * factor_NT.to(adv_NT.dtype)
