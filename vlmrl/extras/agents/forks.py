"""Which attempts at a task are one until they fork: a tree of attempts, counted out in advance.

    forks {2: 4}, 8 attempts:   attempts 0..3 say the same in their turns 0 and 1, and so do 4..7; from turn 2 on each speaks for itself

What is shared is sampled once. Every attempt has an environment of its own, with the same seed, that is given the same actions, as when an
episode that lost its environment is made again; one that then shows something else has drifted, which is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Forks:
    """Turns at which attempts fork, and into how many."""

    ways: tuple[tuple[int, int], ...] = ()
    """(turn, ways)."""

    @staticmethod
    def of(given: Mapping[int, int]) -> Forks:
        return Forks(tuple(sorted(given.items())))

    def leader(self, k: int, turn: int) -> int:
        """The first of the attempts that say the same as attempt k at a turn, and have before."""
        alike = 1
        for at, ways in self.ways:
            alike *= ways if at > turn else 1
        return k // alike * alike


NONE = Forks()
"""Attempts that are apart from the first answer on."""
