"""PGPO: each answer's advantage moves to the tokens that would be other ones without the picture. arXiv:2604.01840, eq. 5 to 7.

    S_t = D[pi(. | picture) || pi(. | no picture)],  I_t = min-max over the answer of log(1 + S_t)
    w_t = I_t / tau below tau, else 1 + beta (I_t - tau) / (1 - tau);  A_t <- A_t w_t length / sum w

so the weights of an answer sum to its length. tau is 0.4 (`threshold`), beta 2 (`boost`). The paper runs it on DAPO's recipe: clip 0.2 and
0.28, a token mean, no divergence from a reference. Its code was not to be had: the equations are as a re-implementation has them, by which
an early state of the authors' code took a quantile for tau and left the sum free.

Ours: S is estimated at the sampled token (`zoo.masked.dependency`), as in both, where the paper writes the whole distribution; without the
picture the prompt has the same ids less its placeholders, where both mask the attention to them. Answers to questions without media, and
those whose tokens all depend alike, stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight
from vlmrl.zoo.masked import dependency


@reweight("pgpo", paper="arXiv:2604.01840", needs=("logp_NT", "unseen_logp_NT"), per="token")
def pgpo(x: AdvantageInputs, adv_NT: Tensor, *, threshold: float = 0.4, boost: float = 2.0) -> Tensor:
    """Token advantages by how much each token depends on the picture, with the same sum of weights over an answer. [n, T]

    Raises:
        ValueError: a threshold outside (0, 1), a boost below 0, or no log-probs without media.
    """
    if not 0 < threshold < 1 or boost < 0:
        raise ValueError(f"reweight 'pgpo': needs threshold {threshold} in (0, 1) and boost {boost} >= 0")
    found_NT = dependency(need(x, "logp_NT", "reweight 'pgpo'"), need(x, "unseen_logp_NT", "reweight 'pgpo'"))[:, : adv_NT.shape[1]]
    inside_NT = (torch.arange(found_NT.shape[1])[None, :] < x.length_N[:, None]) & found_NT.isfinite()
    size_NT = torch.where(inside_NT, found_NT, torch.zeros_like(found_NT)).log1p()
    low_N = size_NT.masked_fill(~inside_NT, torch.inf).amin(dim=1, keepdim=True)
    range_N = size_NT.masked_fill(~inside_NT, -torch.inf).amax(dim=1, keepdim=True) - low_N
    index_NT = (size_NT - low_N) / range_N
    above_NT = 1 + boost * (index_NT - threshold) / (1 - threshold)
    weight_NT = torch.where(index_NT < threshold, index_NT / threshold, above_NT)
    weight_NT = torch.where(inside_NT, weight_NT, torch.zeros_like(weight_NT))
    weight_NT = weight_NT * inside_NT.sum(dim=1, keepdim=True) / weight_NT.sum(dim=1, keepdim=True)
    # the largest index is 1, so the sum is above 0 where there is a range; elsewhere 0/0 and inf are not looked at
    return torch.where(inside_NT & (range_N > 0), adv_NT * weight_NT.to(adv_NT.dtype), adv_NT)
