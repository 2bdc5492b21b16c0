"""Columns of a packed row whose pasts form trees: every segment stands once, right behind its parent's past or behind a sibling's subtree.

Segments lie in preorder, so a subtree is a range of columns, and one number per column says who may see it:

    columns   root P | a1  o1 | a2      | a2'  o2'  a3' | a1''  o1'' a2''
                0      1   2    3         4    5    6     7     8    9      segments
    subtree   [0..N)  [1..7)[2..7)[3]    [4..7)...        [7..N)
    allow[q, k] = k <= q < ends[k]           ends[k]: first column behind the subtree of the segment that k is of

In preorder q lies in [start(s), end(s)) exactly where its segment is s or below s; with k <= q that is "k is of an ancestor, or earlier in
the same segment". A prompt with its answers (`pack.PrefixLayout`) is the tree of depth one.

Attention works on runs: a segment with the only child of its only child and so on is one causal piece. What sees a run from below is one
range of columns as well, [stop, end), so no backend has to gather keys.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
        """Which key each query may see, bool [N, N]: the definition of the layout. Quadratic; for the reference backend and tests."""
        n = torch.arange(self.tokens)
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
        """Places of the runs that a run sees and its own, from the root on."""
        out: list[int] = []
        while place >= 0:
            out.append(place)
            place = self.runs[place].parent
        return out[::-1]


@dataclass(frozen=True)
class TreeLayout(RowLayout):
    """Segments in preorder, trees one behind the other.

    Raises:
        ValueError: a segment without columns, or one that does not stand in preorder.
    """

    parents: tuple[int, ...]
    """Of each segment; -1: a root."""
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.lengths) or any(n < 1 for n in self.lengths):
            raise ValueError(f"{len(self.parents)} segments need as many lengths of at least one column, not {self.lengths}")
        if preorder(self.parents) != list(range(len(self.parents))):
            raise ValueError(f"segments with parents {self.parents} do not stand in preorder")

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """First column of each segment."""
        out: list[int] = []
        at = 0
        for length in self.lengths:
            out.append(at)
            at += length
        return tuple(out)

    @functools.cached_property
    def subtree_ends(self) -> tuple[int, ...]:
        """First column behind the subtree of each segment."""
        out = [start + length for start, length in zip(self.starts, self.lengths, strict=True)]
        for place in reversed(range(len(out))):
            if (parent := self.parents[place]) >= 0:
                out[parent] = max(out[parent], out[place])
        return tuple(out)

    @functools.cached_property
    def runs(self) -> tuple[ColumnRun, ...]:
        children = [0] * len(self.parents)
        for parent in self.parents:
            if parent >= 0:
                children[parent] += 1
        out: list[ColumnRun] = []
        held: list[int] = []
        for place, parent in enumerate(self.parents):
            start, stop = self.starts[place], self.starts[place] + self.lengths[place]
            if parent >= 0 and children[parent] == 1:
                held.append(held[parent])
                out[held[parent]] = out[held[parent]]._replace(stop=stop)
            else:
                held.append(len(out))
                out.append(ColumnRun(start, stop, self.subtree_ends[place], held[parent] if parent >= 0 else -1))
        return tuple(out)

    def columns(self, path: Sequence[int]) -> torch.Tensor:
        """Columns of segments, one behind the other, int64."""
        parts = [torch.arange(self.starts[place], self.starts[place] + self.lengths[place]) for place in path]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])


def preorder(parents: Sequence[int]) -> list[int]:
    """Places of segments in preorder, siblings in the order given. A parent stands in front of its children, -1 is the parent of roots.

    Raises:
        ValueError: a segment in front of its parent.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for place, parent in enumerate(parents):
        if not -1 <= parent < place:
            raise ValueError(f"segment {place} has the parent {parent}, which does not stand in front of it")
        children[parent].append(place)
    out: list[int] = []
    stack = children[-1][::-1]
    while stack:
        place = stack.pop()
        out.append(place)
        stack += reversed(children[place])
    return out
