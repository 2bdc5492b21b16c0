"""What model-judged columns share: which rows are right, and verdicts put back into rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards import exact as _exact  # noqa: F401 (registers what `correct_by` is by default)
from vlmrl.rewards.remote.chat import Ask
from vlmrl.rewards.remote.session import services
from vlmrl.rewards.remote.verdicts import Judged, Problem, Tally, Verdict
from vlmrl.types import Group

EVERY = "every"
"""In place of a column's name: every answered row counts as right."""


def right_rows(group: Group, ctx: RewardContext, by: str) -> list[bool | None]:
    """Whether each rollout is right, by the registered reward `by` with its default arguments: score above 0. None: it cannot judge.

    Raises:
        KeyError: no such reward.
        ValueError: it asks a service itself, or needs arguments.
    """
    if by == EVERY:
        return [True] * len(group.rollouts)
    entry = reward.get(by)
    needed = [p.name for p in entry.parameters.values() if p.required]
    if entry.extra.get("service", False) or needed:
        raise ValueError(f"correct_by '{by}': name a reward by rule that needs no arguments, or '{EVERY}' to judge every row")
    return [None if score is None else score > 0 for score in entry.function(group, ctx)]


def judged(
    endpoint: Mapping[str, Any], column: str, rows: Sequence[Ask | float | None], score: Callable[[Verdict], float | None]
) -> Judged:
    """A column from one question per row, or its score (or None) where nothing has to be asked.

    Raises:
        RemoteError, Preempted, ConfigError, StorageError: as the services.
    """
    asks = [row for row in rows if isinstance(row, Ask)]
    replies = iter(services().chat(endpoint).ask_all(column, asks) if asks else [])
    tally = Tally()
    values: list[float | None] = []
    for row in rows:
        if not isinstance(row, Ask):
            values.append(row)
            continue
        reply = next(replies)
        values.append(tally.missing(reply) if isinstance(reply, Problem) else score(reply))
    return Judged(values, tally.reasons)
