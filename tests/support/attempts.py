"""Inputs of methods on turns: attempts at a task as lists of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from tests.support.builders import inputs
from vlmrl.algo.inputs import AdvantageInputs

Step = tuple[int, int, float]
"""(state, action, reward)"""
GIGPO: list[list[Step]] = [[(0, 0, 0), (1, 0, 0), (2, 0, 1)], [(0, 1, 0), (1, 1, 0), (3, 0, 0)], [(0, 0, 0), (2, 0, 1)]]
"""Three attempts with shared states; the returns are 1, 0, 1."""
DENSE = [[0.2, 0.0, 1.0], [0.2, -0.1], [0.0, 0.3, 0.0, 0.5]]
"""Rewards of three attempts, at states of their own."""


def attempts(*given: Sequence[Step], group: int = 0) -> AdvantageInputs:
    """One row per step, in order; a reward of NaN was not judged."""
    rows = [(r, group, r == r) for attempt in given for _, _, r in attempt]
    return dataclasses.replace(
        inputs(rows),
        trajectory_N=torch.tensor([i for i, attempt in enumerate(given) for _ in attempt], dtype=torch.int64),
        turn_N=torch.tensor([t for attempt in given for t in range(len(attempt))], dtype=torch.int64),
        state_N=torch.tensor([state for attempt in given for state, _, _ in attempt], dtype=torch.int64),
        answer_N=torch.tensor([action for attempt in given for _, action, _ in attempt], dtype=torch.int64),
    )


def dense(*given: Sequence[float]) -> AdvantageInputs:
    """Attempts that never meet in a state."""
    places = iter(range(sum(map(len, given))))
    return attempts(*[[(next(places), 0, r) for r in attempt] for attempt in given])


def shuffled(x: AdvantageInputs, order: Sequence[int]) -> AdvantageInputs:
    """The same rows in another order."""
    return x.of_rows(torch.tensor(list(order), dtype=torch.int64))


def branched(*given: tuple[str, float]) -> AdvantageInputs:
    """Attempts of one group as (what is said, a letter for each turn; the reward of the last): one while they say the same."""
    known: dict[str, int] = {}
    nodes = [known.setdefault(text[: turn + 1], len(known)) for text, _ in given for turn in range(len(text))]
    x = dense(*[[0.0] * (len(text) - 1) + [reward] for text, reward in given])
    return dataclasses.replace(x, node_N=torch.tensor(nodes, dtype=torch.int64))
