"""The tree that the attempts at a task make: a branch is what attempts say and see in common until they part. Rows are turns, [N].

A leaf is an attempt, with its return; attempts that are alike to the end are one leaf. A branch that forks is worth the mean of its
branches, so a thinly sampled one counts as much as a well sampled one. Attempts that are not whole are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need


@dataclass(frozen=True)
class Branches:
    """Of the branch that each row is on. Zeros where its attempt is not whole."""

    value_N: Tensor
    """float64: what it is worth."""
    sibling_N: Tensor
    """int64 id of the fork that it comes from; -1: it begins at the root and has no sibling."""
    fork_N: Tensor
    """float64: mean over the branches of that fork; the branch's own value where there is no fork, or its branches are worth the same."""
    depth_N: Tensor
    """int64: forks in front of it."""
    copies_N: Tensor
    """float64: rows of the same turn, which several attempts have in common; at least 1."""

    @staticmethod
    def of(x: AdvantageInputs, method: str) -> Branches:
        """
        Raises:
            ValueError: a need that is missing (`trajectory_N`, `turn_N`, `node_N`), or an attempt in several groups.
        """
        attempts = Attempts.of(x, method)
        turn_N, node_N = need(x, "turn_N", method), need(x, "node_N", method)
        rows: dict[int, list[int]] = {}
        for n in sorted((n for n in range(len(x.reward_N)) if attempts.whole_N[n]), key=lambda n: int(turn_N[n])):
            rows.setdefault(int(attempts.trajectory_N[n]), []).append(n)
        groups: dict[int, list[list[int]]] = {}
        for of_attempt in rows.values():
            groups.setdefault(int(x.group_N[of_attempt[0]]), []).append(of_attempt)
        count = len(x.reward_N)
        found = {name: [0.0] * count for name in ("value", "fork")}
        whole = {"sibling": [-1] * count, "depth": [0] * count, "copies": [1] * count}
        grown = _Grown(
            totals=[float(total) for total in attempts.totals(x.reward_N)], node=[int(node) for node in node_N], real=found, whole=whole
        )
        for of_group in groups.values():
            grown.grow(of_group)
        return Branches(
            value_N=torch.tensor(found["value"], dtype=torch.float64),
            sibling_N=torch.tensor(whole["sibling"], dtype=torch.int64),
            fork_N=torch.tensor(found["fork"], dtype=torch.float64),
            depth_N=torch.tensor(whole["depth"], dtype=torch.int64),
            copies_N=torch.tensor(whole["copies"], dtype=torch.float64),
        )


@dataclass
class _Grown:
    """Columns while trees are walked."""

    totals: list[float]
    node: list[int]
    real: dict[str, list[float]]
    whole: dict[str, list[int]]
    forks: int = 0

    def grow(self, attempts: list[list[int]], turn: int = 0, depth: int = 0) -> tuple[float, list[int]]:
        """(what a branch is worth, its rows) of attempts that are one up to this turn, given as their rows by turn."""
        own: list[int] = []
        while True:
            parts: dict[int | None, list[list[int]]] = {}
            for rows in attempts:
                parts.setdefault(self.node[rows[turn]] if turn < len(rows) else None, []).append(rows)
            if len(parts) > 1:
                break
            if None in parts:
                value = sum(self.totals[rows[0]] for rows in attempts) / len(attempts)
                return self._told(own, value, depth)
            here = [rows[turn] for rows in attempts]
            for n in here:
                self.whole["copies"][n] = len(here)
            own += here
            turn += 1
        below = [self.grow(part, turn, depth + 1) for part in parts.values()]
        values = torch.tensor([value for value, _ in below], dtype=torch.float64)
        mean = float(values.mean())
        flat = float(values.max() - values.min()) <= segments.FLAT * max(1.0, float(values.abs().max()))
        for value, rows in below:
            for n in rows:
                self.whole["sibling"][n] = self.forks
                self.real["fork"][n] = value if flat else mean
        self.forks += 1
        return self._told(own, mean, depth)

    def _told(self, own: list[int], value: float, depth: int) -> tuple[float, list[int]]:
        for n in own:
            self.real["value"][n] = self.real["fork"][n] = value
            self.whole["depth"][n] = depth
        return value, own
