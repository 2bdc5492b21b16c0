"""Columns of a packed row as runs: causal pieces, each of which sees one range of columns in front of it and is seen by one behind it.

One number per column says who may see it: `allow[q, k] = k <= q < ends[k]`. A prompt with its answers (`pack.PrefixLayout`) is a run with
runs below it; below these there may be others, where conversations share more than a prompt. What sees a run from below is one range of
columns as well, [stop, end), so no backend has to gather keys.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch


class ColumnRun(NamedTuple):
    """Columns [start, stop), causal among themselves. Those of [stop, end) see all of them."""

    start: int
    stop: int
    end: int
    parent: int
    """Place of the run above in `RowLayout.runs`; -1: none."""


@dataclass(frozen=True)
class RowLayout:
    """Who sees whom in a packed row of `tokens` columns, said by its runs. What backends need of it is made once and kept."""

    @functools.cached_property
    def runs(self) -> tuple[ColumnRun, ...]:
        """In the order of columns, which they cover."""
        raise NotImplementedError

    @functools.cached_property
    def tokens(self) -> int:
        return self.runs[-1].stop if self.runs else 0

    @functools.cached_property
    def ends(self) -> torch.Tensor:
        """First column that does not see each column any more, from it on; int64 [N]."""
        out = torch.zeros(self.tokens, dtype=torch.int64)
        for run in self.runs:
            out[run.start : run.stop] = run.end
        return out

    def allow(self) -> torch.Tensor:
        """Say which key each query may see, bool [N, N]: the definition of the layout. Quadratic; for the reference backend and tests."""
        n = torch.arange(self.tokens)  # [1, N] keys against [N, 1] queries
        return (n[None, :] <= n[:, None]) & (n[:, None] < self.ends[None, :])

    @functools.cached_property
    def above(self) -> tuple[int, ...]:
        """How many columns of other runs each run sees."""
        out: list[int] = []
        for run in self.runs:
            over = self.runs[run.parent]
            out.append(0 if run.parent < 0 else out[run.parent] + over.stop - over.start)
        return tuple(out)

    @functools.cached_property
    def pairs(self) -> int:
        """Query-key pairs that attention has to compute: n A + n(n+1)/2 of a run with n columns that sees A others."""
        sizes = [run.stop - run.start for run in self.runs]
        return sum(n * a + n * (n + 1) // 2 for n, a in zip(sizes, self.above, strict=True))

    def path(self, place: int) -> list[int]:
        """List the places of the runs that a run sees and its own, from the root on."""
        out: list[int] = []
        while place >= 0:
            out.append(place)
            place = self.runs[place].parent
        return out[::-1]
