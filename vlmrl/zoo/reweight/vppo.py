"""VPPO: answers that depend on the picture weigh more, and of each only the tokens that do train. arXiv:2510.09285, with the authors' code.

S[i, t] is `zoo.masked.dependency`: the divergence of the policy from itself under a masked picture, estimated at the sampled token. `vppo`
(the paper's trajectory-level advantage shaping) weighs by its mean S_i over the answer,

    A_i <- A_i (b + (c - b) n_i),  n_i = (S_i - min S) / (max S - min S),  c = b + (1 - b) / (mean n + 1e-8)

so that the mean weight is 1; `vppo_tokens` (token-level gradient filtering) keeps the advantage of the ceil(`top` * length) tokens of each
answer with the largest S and puts 0 elsewhere: all tokens count in the denominator of the loss, as in the code. b is 0.9 (`least`), `top`
0.4; patches are 14 pixels, half of them black. The authors' recipe has both, a token mean, clip 0.2 and 0.28, no divergence from a
reference, and 0.06 times -log pi of the sampled tokens.

Ours: least, largest and mean are over the step's answers of all ranks, in the code over a rank's minibatch (the mean over a micro-batch).
Answers to questions without media, and those that nothing judged, are in no statistic and stay as they are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight
from vlmrl.zoo.masked import dependency

NEEDS = ("logp_NT", "masked_logp_NT")
SAME = 1e-6
"""A range of mean dependencies below which all answers weigh the same, as in the authors' code."""


def _dependency(x: AdvantageInputs, method: str) -> tuple[Tensor, Tensor]:
    """(dependency of each token, 0 outside the answers; tokens of answers to questions with media), [N, T] each."""
    found_NT = dependency(need(x, "logp_NT", method), need(x, "masked_logp_NT", method))
    inside_NT = (torch.arange(found_NT.shape[1])[None, :] < x.length_N[:, None]) & found_NT.isfinite()
    return torch.where(inside_NT, found_NT, torch.zeros_like(found_NT)), inside_NT


@reweight("vppo", paper="arXiv:2510.09285", needs=NEEDS)
def vppo(x: AdvantageInputs, adv_N: Tensor, *, least: float = 0.9, patch: int = 14, share: float = 0.5) -> Tensor:
    """Advantages times `least` or more, by how much the answer depends on the picture; 1 in the mean. [N]

    Raises:
        ValueError: `least` outside [0, 1], or no log-probs under masked media.
    """
    if not 0 <= least <= 1:
        raise ValueError(f"reweight 'vppo': least is {least}; it must be in [0, 1]")
    found_NT, inside_NT = _dependency(x, "reweight 'vppo'")
    counted_N = x.valid_N & inside_NT.any(dim=1)
    mean_N = found_NT.sum(dim=1) / inside_NT.sum(dim=1).clamp(min=1)
    if not bool(counted_N.any()):
        return adv_N
    low, high = mean_N[counted_N].min(), mean_N[counted_N].max()
    if float(high - low) <= SAME:
        return adv_N
    n_N = (mean_N - low) / (high - low)
    top = least + (1 - least) / (n_N[counted_N].mean() + 1e-8)
    return torch.where(counted_N, adv_N * (least + (top - least) * n_N).to(adv_N.dtype), adv_N)


@reweight("vppo_tokens", paper="arXiv:2510.09285", needs=NEEDS, per="token")
def vppo_tokens(x: AdvantageInputs, adv_NT: Tensor, *, top: float = 0.4, patch: int = 14, share: float = 0.5) -> Tensor:
    """Token advantages where the token is among the `top` share of its answer by dependency on the picture, 0 elsewhere. [n, T]

    Raises:
        ValueError: `top` outside (0, 1], or no log-probs under masked media.
    """
    if not 0 < top <= 1:
        raise ValueError(f"reweight 'vppo_tokens': top is {top}; it must be in (0, 1]")
    found_NT, inside_NT = (value[:, : adv_NT.shape[1]] for value in _dependency(x, "reweight 'vppo_tokens'"))
    order_NT = found_NT.masked_fill(~inside_NT, -1.0).argsort(dim=1, descending=True, stable=True)
    # rounded: 0.4 * 5 is 2, whatever the last bit of the product says
    kept_N = torch.tensor([math.ceil(round(top * n, 6)) for n in inside_NT.sum(dim=1).tolist()])
    rank_NT = torch.empty_like(order_NT).scatter_(1, order_NT, torch.arange(order_NT.shape[1]).expand_as(order_NT))
    dropped_NT = inside_NT & (rank_NT >= kept_N[:, None])
    return torch.where(dropped_NT, torch.zeros_like(adv_NT), adv_NT)
