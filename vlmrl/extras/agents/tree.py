"""Columns of a packed row whose pasts form trees: every segment stands once, right behind its parent's past or behind a sibling's subtree.

Segments lie in preorder, so a subtree is a range of columns, and one number per column says who may see it:

    columns   root P | a1  o1 | a2      | a2'  o2'  a3' | a1''  o1'' a2''
                0      1   2    3         4    5    6     7     8    9      segments
    subtree   [0..N)  [1..7)[2..7)[3]    [4..7)...        [7..N)
    allow[q, k] = k <= q < ends[k]           ends[k]: first column behind the subtree of the segment that k is of

In preorder q lies in [start(s), end(s)) exactly where its segment is s or below s; with k <= q that is "k is of an ancestor, or earlier in
the same segment". Attention works on runs (`policy.runs`): a segment with the only child of its only child and so on is one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vlmrl.policy.runs import ColumnRun, RowLayout


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
