"""Reward `role_diversity_proposed`: right answers whose thoughts take many points of view. After MultiRole-R1, arXiv:2507.20187.

    r = delta right + (1 - delta) diversity

For questions whose answer depends on who is asked. The paper's diversity is a weighted sum of eight signals of roles and of words, whose
forms and weights could not be read. Ours: the mean of three, each scaled by least and largest of the group to [0, 1]: how many roles
the thought names ("as a nurse", "from the perspective of the owner"), its share of different words, and of different pairs of words; delta
0.9; and `gated`, which gives the bonus to right answers only. A signal that is the same in the whole group counts 0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from vlmrl.answers.tags import MAX_CHARS, parse
from vlmrl.metrics.text import rouge_tokens
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group

_ROLE = re.compile(r"\b(?:as an?|(?:perspective|viewpoint|point of view|view) of (?:an?|the))\s+([a-z][a-z-]{2,30})", re.IGNORECASE)


def roles(thought: str) -> set[str]:
    """Names of the roles that a thought speaks as, in lower case."""
    return {name.lower() for name in _ROLE.findall(thought[-MAX_CHARS:])}


def different(items: Sequence[object]) -> float:
    """Share of different ones, in [0, 1]; 0 without any."""
    return len(set(items)) / len(items) if items else 0.0


def signals(thought: str) -> tuple[float, float, float]:
    """(roles, share of different words, share of different pairs of words)."""
    words = rouge_tokens(thought[-MAX_CHARS:])
    return float(len(roles(thought))), different(words), different(list(itertools.pairwise(words)))


def scaled(values: Sequence[float]) -> list[float]:
    """By least and largest to [0, 1]; 0 for all where these are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


@reward("role_diversity_proposed", paper="arXiv:2507.20187", best=None, compares=True, worker=True, imports=IMPORTS)
def role_diversity_proposed(
    group: Group, ctx: RewardContext, *, delta: float = 0.9, gated: bool = True, check: Check = "exact"
) -> list[float | None]:
    """`delta` for a right answer, and up to 1 - `delta` for a thought of many roles and words among those of the group. In [0, 1].

    A sample that the check is not for is not judged (None).

    Raises:
        ValueError: delta outside (0.5, 1], where a wrong answer could earn as much as a right one.
    """
    if not 0.5 < delta <= 1:
        raise ValueError(f"role_diversity_proposed: delta is {delta}; it must be above 0.5 and at most 1")
    right_answer = check_of(check, group.prompt.sample)
    if right_answer is None:
        return [None] * len(group.rollouts)
    parsed = [parse(rollout.text, group.prompt.answer_format) for rollout in group.rollouts]
    columns = zip(*(signals(one.thought or "") for one in parsed), strict=True)
    diversity = [sum(row) / len(row) for row in zip(*(scaled(column) for column in columns), strict=True)]
    right = [one.answer is not None and right_answer(one.answer) for one in parsed]
    return [delta * ok + (1 - delta) * more * (ok or not gated) for ok, more in zip(right, diversity, strict=True)]
