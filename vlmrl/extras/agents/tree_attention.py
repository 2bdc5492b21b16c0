"""Attention over the runs of a packed row (`policy.runs`): the backends `merge` and `two_call` for trees of any depth.

`merge` computes no pair in vain and gathers no keys of ancestors. What sees a run from below is a range of columns, so every run is one
unmasked call against that range, and one causal call against itself (runs of like lengths in one batch); a column's parts are joined by
log-sum-exp. Backward gives each call the joined output and log-sum-exp, and gets that call's share of the gradient. A depth of one is what
`attention` does for a prompt and its answers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.policy.attention import rows_of
from vlmrl.policy.pack import to_device
from vlmrl.policy.runs import ColumnRun, RowLayout
from vlmrl.policy.windows import ordered


class PaddedRuns(NamedTuple):
    """Runs as padded rows: G of them, C columns of the longest."""

    columns_GC: Tensor
    """Behind a run's end its last one."""
    places: Tensor
    """Of the real columns in G * C."""
    where: Tensor
    """The real columns."""

    @staticmethod
    def of(runs: Sequence[ColumnRun], device: torch.device) -> PaddedRuns:
        lengths = torch.tensor([run.stop - run.start for run in runs])
        within = torch.arange(int(lengths.max()))[None]
        columns = torch.tensor([run.start for run in runs])[:, None] + within.minimum(lengths[:, None] - 1)
        real = within < lengths[:, None]
        return PaddedRuns(*(to_device(x, device) for x in (columns, real.flatten().nonzero()[:, 0], columns[real])))

    def back(self, x: Tensor) -> Tensor:
        """[G, H, C, ...] -> [1, H, real columns, ...]."""
        return x.transpose(0, 1).flatten(1, 2)[None][:, :, self.places]


class _Plan(NamedTuple):
    own: tuple[PaddedRuns, ...]
    """Every run once, those of like lengths together."""
    cross: tuple[ColumnRun, ...]
    """Runs that are seen from below."""


@functools.lru_cache(maxsize=2)
def _plan(layout: RowLayout, device: torch.device) -> _Plan:
    alike: dict[int, list[ColumnRun]] = {}
    for run in layout.runs:
        alike.setdefault((run.stop - run.start).bit_length(), []).append(run)
    return _Plan(
        own=tuple(PaddedRuns.of(runs, device) for _, runs in sorted(alike.items())),
        cross=tuple(run for run in layout.runs if run.stop < run.end),
    )


def merge(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    """[1, H, N, D] each, with as many heads of keys as of queries. CPU kernel of torch."""
    out: Any = _Merged.apply(query, key, value, _plan(layout, query.device), scale)
    return out


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: _Plan, scale: float) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        wide = torch.promote_types(q.dtype, torch.float32)
        out, lse = (torch.empty(shape, dtype=wide) for shape in (q.shape, q.shape[:3]))
        for rows in plan.own:
            found, sums = flash(*(rows_of(x, rows.columns_GC) for x in (q, k, v)), 0.0, True, scale=scale)
            out[:, :, rows.where], lse[:, :, rows.where] = rows.back(found).to(wide), rows.back(sums)
        for run in plan.cross:
            above, below = slice(run.start, run.stop), slice(run.stop, run.end)
            found, sums = flash(q[:, :, below].contiguous(), *(x[:, :, above].contiguous() for x in (k, v)), 0.0, False, scale=scale)
            both = torch.logaddexp(lse[:, :, below], sums)
            kept, added = ((part - both).exp()[..., None] for part in (lse[:, :, below], sums))
            out[:, :, below], lse[:, :, below] = out[:, :, below] * kept + found * added, both
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grad = grads[0].contiguous()
        d_q, d_k, d_v = (torch.zeros_like(x) for x in (q, k, v))
        for rows in ctx.plan.own:
            columns = rows.columns_GC
            # padding repeats a column: its gradient must be zero, or it would be counted twice
            flat = torch.zeros(1, q.shape[1], columns.numel(), q.shape[3], dtype=q.dtype)
            flat[:, :, rows.places] = grad[:, :, rows.where]
            of_rows = flat.view(q.shape[1], *columns.shape, q.shape[3]).transpose(0, 1).contiguous()
            sums = lse[0, :, columns].transpose(0, 1).contiguous()
            parts = flash(of_rows, *(rows_of(x, columns) for x in (q, k, v, out)), sums, 0.0, True, scale=ctx.scale)
            for total, part in zip((d_q, d_k, d_v), parts, strict=True):
                total[:, :, rows.where] += rows.back(part)
        for run in ctx.plan.cross:
            above, below = slice(run.start, run.stop), slice(run.stop, run.end)
            of_queries, of_keys, of_values = (part.contiguous() for part in (q[:, :, below], k[:, :, above], v[:, :, above]))
            rest = (part.contiguous() for part in (out[:, :, below], lse[:, :, below]))
            part_q, part_k, part_v = flash(
                grad[:, :, below].contiguous(), of_queries, of_keys, of_values, *rest, 0.0, False, scale=ctx.scale
            )
            d_q[:, :, below] += part_q
            d_k[:, :, above] += part_k
            d_v[:, :, above] += part_v
        return d_q, d_k, d_v, None, None


def two_call(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    """As `merge`, on any device: siblings in one masked call, with the keys and values of what they see copied once for each."""
    outs: list[Tensor] = []
    columns: list[Tensor] = []
    for rows, above, mask in _siblings(layout, query.device):
        count = len(rows.columns_GC)
        keys, values = (torch.cat([x[:, :, above].expand(count, -1, -1, -1), rows_of(x, rows.columns_GC)], dim=2) for x in (key, value))
        call = functools.partial(F.scaled_dot_product_attention, attn_mask=mask, scale=scale)
        found = ordered(call, rows_of(query, rows.columns_GC), keys, values)
        outs.append(rows.back(found))
        columns.append(rows.where)
    return torch.cat(outs, dim=2)[:, :, torch.cat(columns).argsort()]


@functools.lru_cache(maxsize=2)
def _siblings(layout: RowLayout, device: torch.device) -> tuple[tuple[PaddedRuns, Tensor, Tensor], ...]:
    """(runs, columns of what they see, mask [1, 1, C, A + C] of the longest) of the children of each run; each root alone."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, run in enumerate(layout.runs):
        found.setdefault((run.parent, place if run.parent < 0 else -1), []).append(place)
    out: list[tuple[PaddedRuns, Tensor, Tensor]] = []
    for places in found.values():
        rows = PaddedRuns.of([layout.runs[place] for place in places], device)
        seen = [layout.runs[place] for place in layout.path(places[0])[:-1]]
        above = torch.cat([torch.zeros(0, dtype=torch.int64), *(torch.arange(run.start, run.stop) for run in seen)])
        width = rows.columns_GC.shape[1]
        q, k = torch.arange(width, device=device), torch.arange(len(above) + width, device=device)
        out.append((rows, to_device(above, device), (k[None, :] <= q[:, None] + len(above))[None, None]))
    return tuple(out)
