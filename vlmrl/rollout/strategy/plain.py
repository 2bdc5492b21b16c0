"""Strategy `plain`: all rows of a group are sampled from the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.protocols import strategy
from vlmrl.types import Group


class Plain:
    """On-policy rows only."""

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group: Group, score: Callable[[Group], Sequence[float | None]], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group


@strategy("plain")
def plain() -> Plain:
    """All rows of a group are sampled from the policy."""
    return Plain()
