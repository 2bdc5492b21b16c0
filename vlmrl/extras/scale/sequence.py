"""Packed rows over several ranks: each holds a share of the columns, and in attention a share of the heads (Ulysses, arXiv:2309.14509).

Norms, projections and MLPs act per token, so a rank runs them on its own columns. Attention needs all columns of a head: one exchange
turns (columns / s, heads) into (columns, heads / s), the backend runs on the whole layout with fewer heads, and another exchange turns its
output back. Every rank so computes the same pairs whatever the layout masks, and nothing has to be balanced.

Everything between the ranks goes through `Exchange`, whose gradient is the exchange backwards: what the owner of a row hands out comes
back as its gradient, and gradients of weights are sums over the ranks, as with data parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from vlmrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The ranks that share packed rows."""

    rank: int
    size: int
    control: Any
    """Their group for objects, on the CPU."""
    device: Any
    """Their group for tensors of the device."""

    def told(self, value: Any, owner: int) -> Any:
        """`value` of the owner, on every rank."""
        box = [value]
        torch_dist.broadcast_object_list(box, group=self.control, group_src=owner)
        return box[0]


class Exchange(torch.autograd.Function):
    """x [sum(send), ...] -> [sum(receive), ...]: the first `send[0]` rows go to rank 0, the next to rank 1; those of rank 0 come first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, send: tuple[int, ...], receive: tuple[int, ...], ranks: Ranks) -> Tensor:
        ctx.send, ctx.receive, ctx.ranks = send, receive, ranks
        return _exchange(x, send, receive, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _exchange(grads[0], ctx.receive, ctx.send, ctx.ranks), None, None, None


def _exchange(x: Tensor, send: tuple[int, ...], receive: tuple[int, ...], ranks: Ranks) -> Tensor:
    out = x.new_empty(sum(receive), *x.shape[1:])
    torch_dist.all_to_all_single(out, x.contiguous(), list(receive), list(send), group=ranks.device)
    return out


@dataclass(frozen=True)
class Columns:
    """How `tokens` columns of one row, which one rank owns, lie on the ranks: rank r has [r N / s, (r + 1) N / s)."""

    ranks: Ranks
    tokens: int
    owner: int

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Columns of each rank."""
        ends = [(r + 1) * self.tokens // self.ranks.size for r in range(self.ranks.size)]
        return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))

    @property
    def own(self) -> slice:
        """This rank's."""
        start = sum(self.sizes[: self.ranks.rank])
        return slice(start, start + self.sizes[self.ranks.rank])

    @property
    def owned(self) -> bool:
        """Whether the row is this rank's."""
        return self.ranks.rank == self.owner

    def of(self, places: Tensor) -> list[Tensor]:
        """Where in `places`, columns in any order, those of each rank stand."""
        ends = torch.tensor(list(accumulate(self.sizes)))
        held = torch.bucketize(places.cpu(), ends, right=True)
        return [(held == r).nonzero()[:, 0] for r in range(self.ranks.size)]

    def hand_out(self, rows: Tensor, sizes: Sequence[int], *, gradient: bool) -> Tensor:
        """From the owner's rows [sum(sizes), ...] to each rank its own; the others come with none, [0, ...].

        With `gradient` every rank takes part in the exchange of backward, whatever trains on it in front of this place.
        """
        if gradient and torch.is_grad_enabled() and not rows.requires_grad:
            rows = rows.detach().requires_grad_()
        count, own = len(sizes), self.ranks.rank
        send = tuple(sizes) if self.owned else (0,) * count
        receive = tuple(sizes[own] if r == self.owner else 0 for r in range(count))
        out: Any = Exchange.apply(rows, send, receive, self.ranks)
        return out

    def collect(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """From each rank's rows to the owner's, rank after rank; the others get none."""
        count, own = len(sizes), self.ranks.rank
        send = tuple(sizes[own] if r == self.owner else 0 for r in range(count))
        receive = tuple(sizes) if self.owned else (0,) * count
        out: Any = Exchange.apply(rows, send, receive, self.ranks)
        return out

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1, H, n, D] of this rank's n columns -> [1, H / s, N, D] of all columns, in one exchange. Where there are fewer key heads than
        ranks they are repeated.

        Raises:
            ConfigError: heads that cannot be shared by so many ranks.
        """
        size = self.ranks.size
        require_heads(query.shape[1], key.shape[1], size)
        key, value = (x if x.shape[1] >= size else x.repeat_interleave(size // x.shape[1], dim=1) for x in (key, value))
        shares = [x[0].unflatten(0, (size, -1)) for x in (query, key, value)]  # [s, H / s, n, D]
        heads = [share.shape[1] for share in shares]
        mixed = torch.cat(shares, dim=1).transpose(1, 2).flatten(0, 1)  # [s n, all heads of a rank, D]
        own = self.sizes[self.ranks.rank]
        got: Any = Exchange.apply(mixed, (own,) * size, self.sizes, self.ranks)
        q, k, v = got.transpose(0, 1)[None].split(heads, dim=1)
        return q, k, v

    def to_columns(self, out: Tensor) -> Tensor:
        """[1, H / s, N, D] of this rank's heads -> [1, H, n, D] of all heads in its columns."""
        size, own = self.ranks.size, self.sizes[self.ranks.rank]
        got: Any = Exchange.apply(out[0].transpose(0, 1), self.sizes, (own,) * size, self.ranks)
        return got.unflatten(0, (size, own)).permute(0, 2, 1, 3).flatten(0, 1)[None]


def require_heads(heads: int, kv_heads: int, size: int) -> None:
    """
    Raises:
        ConfigError: heads that cannot be shared by so many ranks.
    """
    if heads % size or (kv_heads % size and size % kv_heads):
        raise ConfigError(f"train.sequence: {size} ranks cannot share {heads} heads with {kv_heads} key heads evenly")
