"""The layout of a packed row whose groups share a prompt: [prompt; answer 1; ...; answer G], group after group.

Pure bookkeeping, without a model. Everything that acts per token is unchanged by it; attention follows `allow`: a token sees the
earlier tokens of its own prompt and of its own answer, and nothing else. A group with one answer is an ordinary packed row, so
padding-free supervised fine-tuning is the same layout. Idea: the Prefix Grouper technical report
(johncaged/PrefixGrouper); docs/design/003-shared-prefix.md.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Block:
    """One group in a packed row: `prefix` prompt tokens from column `start`, then the answers, `suffixes[i]` tokens each."""

    start: int
    prefix: int
    suffixes: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.prefix + sum(self.suffixes)

    @property
    def suffix_starts(self) -> tuple[int, ...]:
        """First column of each answer."""
        out: list[int] = []
        at = self.start + self.prefix
        for length in self.suffixes:
            out.append(at)
            at += length
        return tuple(out)


@dataclass(frozen=True)
class PrefixLayout:
    """The blocks of one packed row of `tokens` columns. Tensors that attention backends need are built once and kept."""

    blocks: tuple[Block, ...]

    @functools.cached_property
    def tokens(self) -> int:
        return self.blocks[-1].end if self.blocks else 0

    @functools.cached_property
    def owners(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(group, answer) of every column, int64 [N]; answer 0 is the prompt, 1..G the answers."""
        group: list[int] = []
        answer: list[int] = []
        for g, block in enumerate(self.blocks):
            group += [g] * (block.end - block.start)
            answer += [0] * block.prefix
            for i, length in enumerate(block.suffixes):
                answer += [i + 1] * length
        return torch.tensor(group), torch.tensor(answer)

    @functools.cached_property
    def score_rows(self) -> torch.Tensor:
        """Column whose hidden state predicts each answer token, in the order of groups, answers, tokens; int64 [M].

        The last prompt column appears once per answer: it predicts every first token.
        """
        rows = [torch.zeros(0, dtype=torch.int64)]
        for block in self.blocks:
            answers = block.start + block.prefix
            before = torch.arange(answers - 1, block.end - 1)
            before[[at - answers for at, length in zip(block.suffix_starts, block.suffixes, strict=True) if length]] = answers - 1
            rows.append(before)
        return torch.cat(rows)

    def allow(self) -> torch.Tensor:
        """Which key each query may see, bool [N, N]: the definition of the layout. Quadratic; for the reference backend and tests."""
        group, answer = self.owners
        n = torch.arange(self.tokens)
        return (
            (n[None, :] <= n[:, None])
            & (group[None, :] == group[:, None])
            & ((answer[None, :] == 0) | (answer[None, :] == answer[:, None]))
        )

    @functools.cached_property
    def pairs(self) -> int:
        """Query-key pairs that attention has to compute: P(P+1)/2 + sum over answers of C P + C(C+1)/2, over the groups."""
        return sum(attention_pairs(block.prefix, block.suffixes) for block in self.blocks)


def attention_pairs(prefix: int, suffixes: Sequence[int]) -> int:
    """Pairs of one group under the shared prefix."""
    return prefix * (prefix + 1) // 2 + sum(c * prefix + c * (c + 1) // 2 for c in suffixes)


def layout_of(groups: Sequence[tuple[int, Sequence[int]]]) -> PrefixLayout:
    """Layout of (prompt length, answer lengths), group after group.

    Raises:
        ValueError: a prompt without tokens: there would be nothing to predict the first token of an answer from.
    """
    blocks: list[Block] = []
    at = 0
    for prefix, suffixes in groups:
        if prefix < 1:
            raise ValueError("a group needs at least one prompt token")
        blocks.append(Block(at, prefix, tuple(suffixes)))
        at = blocks[-1].end
    return PrefixLayout(tuple(blocks))


def partition(groups: Sequence[tuple[int, Sequence[int]]], budget: int) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Deal groups (prompt length, answer lengths) into packed rows of at most `budget` tokens.

    First fit, largest first. A group over the budget is cut between answers and its prompt is computed again in every part, which
    changes no gradient; a single answer with its prompt may exceed the budget. Returns, per packed row, (group, its answers).
    """
    parts: list[tuple[int, int, tuple[int, ...]]] = []
    for g, (prefix, suffixes) in enumerate(groups):
        held: tuple[int, ...] = ()
        size = prefix
        for i, length in enumerate(suffixes):
            if held and size + length > budget:
                parts.append((size, g, held))
                held, size = (), prefix
            held += (i,)
            size += length
        if held:
            parts.append((size, g, held))
    rows: list[list[tuple[int, tuple[int, ...]]]] = []
    room: list[int] = []
    for size, g, held in sorted(parts, key=lambda part: -part[0]):
        place = next((r for r, left in enumerate(room) if left >= size), None)
        if place is None:
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append((g, held))
        room[place] -= size
    return [sorted(row) for row in rows]
