"""ACE: wrong answers that the policy has become sure of are pushed down harder. arXiv:2602.21420.

    A'_i = A_i (1 + alpha softplus(c_i)) for A_i < 0,  c_i = log pi(y_i) / pi_ref(y_i)

and A_i as it is where it is not negative. pi is the policy before the step's updates; c carries no gradient. softplus(0) = 0.69: every
negative advantage is strengthened, also at the start. Ours: alpha 1 and c divided by the answer's length (neither is in what we could
read; `length` `sum` leaves it out), c within +-10, and `excess`, which counts only what is above softplus(0).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

LIMIT = 10.0


def penalised(adv_N: Tensor, confidence_N: Tensor, *, alpha: float, excess: bool) -> Tensor:
    """The formula, from log-ratios per answer. [N]"""
    extra_N = torch.nn.functional.softplus(confidence_N.clamp(-LIMIT, LIMIT))
    if excess:
        extra_N = (extra_N - math.log(2)).clamp(min=0)
    return torch.where(adv_N < 0, adv_N * (1 + alpha * extra_N), adv_N)


@reweight("ace", paper="arXiv:2602.21420", needs=("logp_NT", "logp_ref_NT"))
def ace(x: AdvantageInputs, adv_N: Tensor, *, alpha: float = 1.0, length: Literal["mean", "sum"] = "mean", excess: bool = False) -> Tensor:
    """Negative advantages grow with the answer's log-ratio to the reference. [N]

    Raises:
        ValueError: alpha below 0, or no log-probs.
    """
    if alpha < 0:
        raise ValueError(f"reweight 'ace': alpha is {alpha}; it must not be negative")
    logp_NT, ref_NT = need(x, "logp_NT", "reweight 'ace'"), need(x, "logp_ref_NT", "reweight 'ace'")
    inside_NT = torch.arange(logp_NT.shape[1])[None, :] < x.length_N[:, None]
    gap_N = torch.where(inside_NT, (logp_NT - ref_NT).double(), torch.zeros(logp_NT.shape, dtype=torch.float64)).sum(dim=1)
    return penalised(adv_N, gap_N / x.length_N.clamp(min=1) if length == "mean" else gap_N, alpha=alpha, excess=excess)
