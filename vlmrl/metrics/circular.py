"""Choices asked several times: circular evaluation, and pairs of pictures. What is guessed once is rarely guessed every time.

Circular evaluation asks a question once for each rotation of its options and counts it if all are answered right (MMBench,
arXiv:2307.06281). MMVP asks one question of two pictures that differ in its answer (arXiv:2401.06209).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Circular:
    """Shares in [0, 1]."""

    first: float
    """Questions whose first rotation, the options as given, is answered right: plain accuracy."""
    circular: float
    """Questions of which every rotation is answered right."""
    mean: float
    """Rotations that are answered right, over all rotations of all questions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Shares in [0, 1]."""

    individual: float
    """Rows that are right."""
    pair: float
    """Pairs of which both rows are right."""


def rotations(options: Sequence[T], gold: int) -> list[tuple[list[T], int]]:
    """The options in each rotation with the place of the right one, the given order first; as many as there are options.

    Raises:
        ValueError: `gold` is not the index of an option.
    """
    n = len(options)
    if not 0 <= gold < n:
        raise ValueError(f"rotations: the right option is number {gold}, but there are {n} options (counted from 0)")
    return [([*options[k:], *options[:k]], (gold - k) % n) for k in range(n)]


def circular_accuracy(right: Mapping[Hashable, Sequence[bool]]) -> Circular:
    """Question -> whether each of its rotations was answered right, the given order first. Questions may have different numbers.

    Raises:
        ValueError: no questions, or one without answers.
    """
    empty = [question for question, answers in right.items() if not answers]
    if not right or empty:
        raise ValueError(f"circular_accuracy: question {empty[0]!r} has no answers" if empty else "circular_accuracy: no questions")
    n = len(right)
    return Circular(
        first=sum(bool(answers[0]) for answers in right.values()) / n,
        circular=sum(all(answers) for answers in right.values()) / n,
        mean=sum(sum(map(bool, answers)) for answers in right.values()) / sum(map(len, right.values())),
    )


def pair_accuracy(right: Sequence[bool], pairs: Sequence[Hashable] | None = None) -> Pairs:
    """Accuracy of rows and of pairs of rows. `pairs` names the pair of each row; without it rows 0 and 1 are one, 2 and 3 the next.

    Raises:
        ValueError: no rows, names of another number, or a pair that has not two rows.
    """
    names = [i // 2 for i in range(len(right))] if pairs is None else list(pairs)
    if not right or len(names) != len(right):
        raise ValueError(f"pair_accuracy: {len(right)} rows and {len(names)} names of pairs; give one name per row, at least one row")
    members: dict[Hashable, list[bool]] = {}
    for name, value in zip(names, right, strict=True):
        members.setdefault(name, []).append(bool(value))
    odd = [name for name, values in members.items() if len(values) != 2]
    if odd:
        raise ValueError(f"pair_accuracy: pair {odd[0]!r} has {len(members[odd[0]])} rows, a pair has 2")
    return Pairs(
        individual=sum(map(bool, right)) / len(right),
        pair=sum(all(values) for values in members.values()) / len(members),
    )
