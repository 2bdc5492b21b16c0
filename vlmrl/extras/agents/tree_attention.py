"""Attention over the runs of a packed row (`policy.runs`): the backends `merge` and `two_call` for trees of any depth.

`merge` computes no pair in vain and gathers no keys of ancestors. What sees a run from below is a range of columns, so every run is one
unmasked call against that range, and one causal call against itself; a column's parts are joined by log-sum-exp. Backward gives each call
the joined output and log-sum-exp, and gets that call's share of the gradient. A depth of one is what `attention` does for a prompt and its
answers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.policy.attention import rows_of, side_by_side
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


def merge(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    """query [1, Hq, N, D]; key and value [1, Hkv, N, D]. CPU kernel of torch."""
    out: Any = _Merged.apply(*map(side_by_side, (query, key, value)), layout.runs, scale)
    return out


def _calls(runs: Sequence[ColumnRun]) -> Iterator[tuple[slice, slice, bool]]:
    """(columns of the queries, of the keys, whether they are the same): each run sees itself, then what stands below a run sees it."""
    for run in runs:
        yield slice(run.start, run.stop), slice(run.start, run.stop), True
    for run in runs:
        if run.stop < run.end:
            yield slice(run.stop, run.end), slice(run.start, run.stop), False


class _Merged(torch.autograd.Function):
    """The kernel takes views, and fewer heads of keys than of queries."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, runs: Sequence[ColumnRun], scale: float) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        wide = torch.promote_types(q.dtype, torch.float32)
        out, lse = (torch.empty(shape, dtype=wide) for shape in (q.shape, q.shape[:3]))
        for below, above, itself in _calls(runs):
            found, sums = flash(q[:, :, below], k[:, :, above], v[:, :, above], 0.0, itself, scale=scale)
            if not itself:
                both = torch.logaddexp(lse[:, :, below], sums)
                kept, added = ((part - both).exp()[..., None] for part in (lse[:, :, below], sums))
                found, sums = out[:, :, below] * kept + found * added, both
            out[:, :, below], lse[:, :, below] = found, sums
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.runs, ctx.scale = runs, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grad, (d_q, d_k, d_v) = side_by_side(grads[0]), (torch.zeros_like(x) for x in (q, k, v))
        for below, above, itself in _calls(ctx.runs):
            of_queries = (x[:, :, below] for x in (grad, q))
            of_keys = (x[:, :, above] for x in (k, v))
            part_q, part_k, part_v = flash(*of_queries, *of_keys, out[:, :, below], lse[:, :, below], 0.0, itself, scale=ctx.scale)
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
