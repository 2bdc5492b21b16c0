"""Draws tokens from logits: temperature, nucleus, and a table of uniforms that depends on the request's seed and the token's place alone.

On CUDA a running sum over the vocabulary (`cumsum`) adds up in no fixed order, so a uniform near the border of two tokens would give
one or the other. There the border is found level by level instead: sums of pieces, then the sums within the piece that holds it. A sum
of few numbers has a fixed order. On the CPU `cumsum` has one, and is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vlmrl.types import GenerationSettings

PIECE = 64
"""Numbers that are summed at a time where `cumsum` has no fixed order. The table of a level holds PIECE^2 numbers per row."""


def uniforms(seeds: Sequence[int], tokens: int) -> np.ndarray:
    """Draw the uniforms of each rollout: from a counter-based generator per seed, so that no rollout moves another's.

    Returns:
        float64 [len(seeds), tokens] in [0, 1).
    """
    return np.stack([np.random.Generator(np.random.Philox(seed)).random(tokens) for seed in seeds])


def sample(logits_NV: Tensor, draws_N: Tensor, settings: GenerationSettings) -> tuple[Tensor, Tensor]:
    """Draw a token of each row. Greedy takes the first of equal maxima.

    Nucleus: the smallest set of most likely tokens whose mass reaches `top_p`, renormalised.

    Returns:
        (token [N], its log-prob [N] in nats, under the distribution it was drawn from).
    """
    if settings.temperature == 0:
        logp_NV = torch.log_softmax(logits_NV, dim=-1)
        token_N = logits_NV.argmax(dim=-1)
        return token_N, logp_NV.gather(1, token_N[:, None])[:, 0]
    logp_NV = torch.log_softmax(logits_NV / settings.temperature, dim=-1)
    if settings.top_p < 1:
        # stable: of equal tokens at the border the same ones stay, on every device
        ordered, order = logp_NV.sort(dim=-1, descending=True, stable=True)
        ordered = ordered.masked_fill(_behind(ordered.exp(), settings.top_p), float("-inf"))
        logp_NV = torch.log_softmax(torch.full_like(logp_NV, float("-inf")).scatter(1, order, ordered), dim=-1)
    token_N = _place(logp_NV.double().exp(), draws_N)  # in float64 like the uniforms
    return token_N, logp_NV.gather(1, token_N[:, None])[:, 0]


def _behind(p_NV: Tensor, mass: float) -> Tensor:
    """Whether the numbers before a place reach `mass` without it, bool [N, V]."""
    if p_NV.device.type == "cpu":
        return p_NV.cumsum(-1) - p_NV >= mass
    last_N = first_over(p_NV, torch.full_like(p_NV[:, 0], mass), reached=True)
    return torch.arange(p_NV.shape[1], device=p_NV.device)[None] > last_N[:, None]


def _place(p_NV: Tensor, draws_N: Tensor) -> Tensor:
    """Find the place in whose share of the whole each uniform falls, int64 [N]."""
    if p_NV.device.type == "cpu":
        # the uniform is scaled by the whole sum, which is 1 only up to rounding
        cdf_NV = p_NV.cumsum(-1)
        return torch.searchsorted(cdf_NV, (draws_N * cdf_NV[:, -1])[:, None], right=True)[:, 0].clamp(max=p_NV.shape[1] - 1)
    return first_over(p_NV, draws_N * p_NV.sum(-1))


def first_over(p_NV: Tensor, threshold_N: Tensor, *, reached: bool = False) -> Tensor:
    """Find the first place at which the running sum of numbers >= 0 is above the threshold (with `reached`, at least it). Every sum is over
    at most PIECE numbers and in the same order whatever the device does.

    Returns:
        [N] int64; where the sum never gets there, the last place with a number above 0.
    """
    rows = p_NV.shape[0]
    levels = [p_NV]
    while levels[-1].shape[1] > PIECE:
        x = levels[-1]
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % PIECE))
        levels[-1] = x
        levels.append(x.view(rows, -1, PIECE).sum(-1))  # [N, V] -> [N, V / PIECE] -> ...
    # from the coarsest level down: find the piece that holds the border, and go on within it with what is left of the threshold
    place_N = torch.zeros(rows, dtype=torch.int64, device=p_NV.device)
    left_N = threshold_N
    for x in reversed(levels):
        of_row = x.view(rows, -1, min(PIECE, x.shape[1]))
        piece = of_row.gather(1, place_N[:, None, None].expand(-1, 1, of_row.shape[2]))[:, 0]
        sums = _running(piece)
        # a piece was summed in another order when it was one number: what is left must not be more than the piece has
        total = sums[:, -1:]
        bound = left_N[:, None].minimum(total if reached else torch.nextafter(total, torch.zeros_like(total)))
        inside = ((sums >= bound) if reached else (sums > bound)) & (sums > 0)
        at = inside.to(torch.int8).argmax(dim=1)
        before = torch.where(at > 0, sums.gather(1, (at - 1).clamp(min=0)[:, None])[:, 0], torch.zeros_like(left_N))
        left_N = bound[:, 0] - before
        place_N = place_N * of_row.shape[2] + at
    return place_N


def _running(x: Tensor) -> Tensor:
    """Running sums over the last dimension of few numbers >= 0. Each is a sum of its own, in which the numbers behind count as 0: sums of
    equally many numbers are made in one order, so none is below the one before it."""
    n = x.shape[-1]
    upto = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    return torch.where(upto, x[..., None, :], torch.zeros((), dtype=x.dtype, device=x.device)).sum(-1)
