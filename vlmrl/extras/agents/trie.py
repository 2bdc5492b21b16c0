"""Rows of a group as a trie: what their conversations share, from the first prompt on, stands in a packed row once.

A row is a prompt with a response. Where rows begin with the same ids, with the same media in the same columns, they share these segments:
the prompt of a task among its attempts, the turns of one attempt, and the turns that several attempts have in common, because they sampled
the same answer and saw the same screen, or because one was branched off the other. Segments are cut where a prompt or a response of
some row ends, so a shared segment is a whole answer or a whole observation. Log-probs are those of a row alone, since a state depends on
its past only; rows with a column in common add up in its gradient.

`agents.tree` says who sees whom. Positions of a segment are counted from 0 and shifted by where its parent's end: with pictures in any
turn they are those of the whole conversation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vlmrl.extras.agents.tree import TreeLayout, preorder
from vlmrl.policy.forward import Layout, shared_prefix
from vlmrl.policy.pack import (
    PackedBatch,
    PositionSpec,
    Row,
    VisualSpan,
    first_fit,
    mrope_positions,
    response_mask,
    tensor_of,
    to_device,
    visual_index,
)
from vlmrl.types import MediaHandle, Prompt


@dataclass(frozen=True)
class TrieSegment:
    """Columns that stand once."""

    ids: tuple[int, ...]
    visual: tuple[VisualSpan, ...]
    """Counted from the segment's start."""

    def prompt(self, like: Prompt) -> Prompt:
        """As a prompt of its own, with the media whose features it holds."""
        media: list[MediaHandle] = []
        owners: list[int] = []
        for span in self.visual:
            if span.first == 0:
                media.append(span.handle)
            owners.append(max(n for n, handle in enumerate(media) if handle == span.handle))
        one_each = owners == list(range(len(media)))
        spans = tuple((span.start, span.end) for span in self.visual)
        return dataclasses.replace(like, ids=self.ids, media=tuple(media), spans=spans, owners=() if one_each else tuple(owners), kinds={})


@dataclass
class _Growing:
    """A segment while rows come in."""

    segment: TrieSegment
    parent: int
    children: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Trie:
    """Segments in preorder, group after group, and the path of each row: places of its segments, which together are its columns."""

    segments: tuple[TrieSegment, ...]
    layout: TreeLayout
    paths: tuple[tuple[int, ...], ...]
    like: Prompt
    """Any prompt of the rows; segments as prompts have its sample."""

    @staticmethod
    def of(rows: Sequence[Row]) -> Trie:
        """Rows come in by the length of their prompts, so that a prompt which another one continues is there before it.

        Raises:
            ValueError: no rows, or as `visual_index`.
        """
        if not rows:
            raise ValueError("a trie needs rows")
        grown: list[_Growing] = []
        roots: dict[int, list[int]] = {}
        reached: dict[int, list[int]] = {}
        for place in sorted(range(len(rows)), key=lambda n: (len(rows[n].prompt.ids), n)):
            reached[place] = _grow(grown, roots.setdefault(rows[place].group, []), rows[place])
        order = preorder([one.parent for one in grown])
        at = {place: n for n, place in enumerate(order)} | {-1: -1}
        held = [grown[place] for place in order]
        layout = TreeLayout(tuple(at[one.parent] for one in held), tuple(len(one.segment.ids) for one in held))
        paths = tuple(tuple(at[n] for n in reached[place]) for place in range(len(rows)))
        return Trie(tuple(one.segment for one in held), layout, paths, rows[0].prompt)

    def positions(self, spec: PositionSpec) -> torch.Tensor:
        """[3, N]. As in `pack.mrope_positions`, of each root's conversations from 0."""
        parts: list[torch.Tensor] = []
        following: list[int] = []
        for segment, parent in zip(self.segments, self.layout.parents, strict=True):
            own = segment.prompt(self.like)
            # one text token behind it: its position is where a child goes on
            at = mrope_positions(len(own.ids) + 1, own.spans, own.media, spec, own.owners) + (following[parent] if parent >= 0 else 0)
            parts.append(at[:, :-1])
            following.append(int(at[0, -1]))
        return torch.cat(parts, dim=1)

    def prompts(self) -> tuple[tuple[Prompt, int], ...]:
        """Segments with media, as prompts, and their first columns."""
        held = zip(self.segments, self.layout.starts, strict=True)
        return tuple((segment.prompt(self.like), start) for segment, start in held if segment.visual)


def _grow(grown: list[_Growing], roots: list[int], row: Row) -> list[int]:
    """Put a row into the trie of its group; the places of its segments."""
    ids, visual = (*row.prompt.ids, *row.response), visual_index(row.prompt)
    path: list[int] = []
    done = 0
    while fitting := [n for n in (grown[path[-1]].children if path else roots) if _fits(grown[n].segment, ids, visual, done)]:
        # of an answer and its beginning the whole one: rows that go on with it all stand below it
        path.append(max(fitting, key=lambda n: len(grown[n].segment.ids)))
        done += len(grown[path[-1]].segment.ids)
    for end in (len(row.prompt.ids), len(ids)):
        if end > done:
            grown.append(_Growing(TrieSegment(ids[done:end], _within(visual, done, end)), path[-1] if path else -1))
            (grown[path[-1]].children if path else roots).append(len(grown) - 1)
            path.append(len(grown) - 1)
            done = end
    return path


def _fits(segment: TrieSegment, ids: tuple[int, ...], visual: Sequence[VisualSpan], done: int) -> bool:
    """Whether a row goes on with a segment: its ids, and its media in the same columns and no others."""
    end = done + len(segment.ids)
    return ids[done:end] == segment.ids and _within(visual, done, end) == segment.visual


def _within(visual: Sequence[VisualSpan], start: int, end: int) -> tuple[VisualSpan, ...]:
    """Spans that touch columns [start, end), counted from `start`."""
    return tuple(span._replace(start=span.start - start, end=span.end - start) for span in visual if span.start < end and span.end > start)


def split_trees(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Places of the rows of each packed row: tries whole where they fit, else cut below a segment as high up as possible. What is above a
    cut is computed in every part, which changes no gradient; the conversation of a single row may exceed the budget."""
    if not rows:
        return []
    trie = Trie.of(rows)
    parts = _parts(trie, max_tokens)
    return [sorted(place for n in held for place in parts[n][1]) for held in first_fit([size for size, _ in parts], max_tokens)]


def _parts(trie: Trie, budget: int) -> list[tuple[int, list[int]]]:
    """(tokens, places of rows) of parts of the trie that are computed apart, with all that they see."""
    parents, lengths = trie.layout.parents, trie.layout.lengths
    ending: list[list[int]] = [[] for _ in parents]
    for place, path in enumerate(trie.paths):
        ending[path[-1]].append(place)
    above: list[int] = []
    for parent in parents:
        above.append(above[parent] + lengths[parent] if parent >= 0 else 0)
    below: list[list[tuple[int, list[int]]]] = [[] for _ in parents]
    roots: list[tuple[int, list[int]]] = []
    for n in reversed(range(len(parents))):
        base = above[n] + lengths[n]
        own = _joined(below[n][::-1], base, budget) or [(base, [])]
        own[0][1].extend(ending[n])
        (below[parents[n]] if parents[n] >= 0 else roots).extend(reversed(own))
    return roots[::-1]


def _joined(parts: Sequence[tuple[int, list[int]]], base: int, budget: int) -> list[tuple[int, list[int]]]:
    """Neighbours that fit together, where all of them have `base` tokens in common."""
    out: list[tuple[int, list[int]]] = []
    for size, places in parts:
        if out and out[-1][0] + size - base <= budget:
            out[-1] = out[-1][0] + size - base, [*out[-1][1], *places]
        else:
            out.append((size, list(places)))
    return out


def pack_trees(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> PackedBatch:
    """One packed row of all given rows, which keep their order."""
    trie = Trie.of(rows)
    scored = [
        trie.layout.columns(path)[len(row.prompt.ids) - 1 : len(row.prompt.ids) + len(row.response) - 1]
        for row, path in zip(rows, trie.paths, strict=True)
    ]
    return PackedBatch(
        rows=tuple(rows),
        prompts=trie.prompts(),
        layout=trie.layout,
        ids_1N=tensor_of([token for segment in trie.segments for token in segment.ids])[None],
        positions_31N=to_device(trie.positions(spec)[:, None], device),
        score_M=to_device(torch.cat(scored), device),
        targets_M=tensor_of([token for row in rows for token in row.response]),
        mask_BT=to_device(response_mask(rows), device),
    )


TREES = Layout(split_trees, pack_trees, shared_prefix)
"""`trees` of `policy.forward.LAYOUTS`."""
