"""The backend `flash` of packed rows: CUDA in 16 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from vlmrl.policy import attention, kernels
from vlmrl.policy.pack import to_device
from vlmrl.policy.runs import RowLayout


def flash(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    """Attend by the package flash-attn where it is installed, else by torch's own kernels.

    Returns:
        [1, Hq, N, D]
    """
    if not attention.has_flash_package():
        return kernels.segments(query, key, value, layout, scale)
    from flash_attn import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]

    return varlen(query, key, value, layout, scale, flash_attn_varlen_func)


def varlen(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float, kernel: Callable[..., Tensor]) -> Tensor:
    """Attend through a variable-length kernel with flash-attn's signature: call A roots (prompts) against themselves, call B every other
    run against [what it sees; itself], causal and aligned at the bottom right.

    Returns:
        [1, Hq, N, D]
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = torch.empty_like(q)
    results: list[tuple[Tensor, Tensor]] = []
    for where, keys, at in _varlen_plan(layout, query.device):
        got = kernel(
            q[where],
            k[keys],
            v[keys],
            cu_seqlens_q=at.q,
            cu_seqlens_k=at.k,
            max_seqlen_q=at.longest_q,
            max_seqlen_k=at.longest_k,
            softmax_scale=scale,
            causal=at.causal,
            # its backward adds up with atomics unless it is told not to, and torch's own switch does not reach it
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        results.append((where, got))
    for where, got in results:  # the columns of the two calls do not meet
        out = out.index_copy(0, where, got)
    return out.transpose(0, 1)[None]


@functools.lru_cache(maxsize=2)
def _varlen_plan(layout: RowLayout, device: torch.device) -> list[tuple[Tensor, Tensor, kernels.Lengths]]:
    """Plan the calls: (query columns, key columns, lengths) of call A, and of call B where a run sees others."""
    columns = [torch.arange(run.start, run.stop) for run in layout.runs]
    calls: list[tuple[Tensor, Tensor, kernels.Lengths]] = []
    for root in (True, False):
        places = [n for n, run in enumerate(layout.runs) if (run.parent < 0) == root]
        if places:
            keys = [columns[above] for n in places for above in layout.path(n)]
            pairs = [(len(columns[n]), layout.above[n] + len(columns[n])) for n in places]
            lengths = kernels.Lengths.of(pairs, causal=True, device=device)
            calls.append((to_device(torch.cat([columns[n] for n in places]), device), to_device(torch.cat(keys), device), lengths))
    return calls
