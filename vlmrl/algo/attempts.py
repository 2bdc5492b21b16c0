"""Turns of attempts: which rows are the steps of one attempt at a task, in which order, and what follows each. Rows are turns, [N].

An attempt with a row that nothing judged (a fault of the environment, above all) is not whole: it enters no statistic.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need


def joint(*ids_N: Tensor) -> Tensor:
    """Give each combination of ids one id.

    Returns:
        [N] int64; equal where all the given ids are equal.
    """
    stacked = torch.stack(ids_N, dim=1)
    # torch.unique has no types of its own
    return cast("tuple[Tensor, Tensor]", torch.unique(stacked, dim=0, return_inverse=True))[1]  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True)
class Attempts:
    """The attempts of a step's rows."""

    trajectory_N: Tensor
    whole_N: Tensor
    """bool: every row of the attempt was judged."""
    first_N: Tensor
    """bool: one row of each whole attempt, which speaks for it."""
    steps_N: Tensor
    """float64: rows of the attempt."""

    @staticmethod
    def of(x: AdvantageInputs, method: str) -> Attempts:
        """Find the attempts of a step's rows. `method` is how a message calls the one that asks, e.g. "advantage 'gigpo'".

        Raises:
            ValueError: no `trajectory_N`, or an attempt whose rows are in several groups.
        """
        trajectory_N = need(x, "trajectory_N", method)
        everyone_N = torch.ones_like(x.valid_N)
        group_N = x.group_N.double()
        # an attempt whose largest and smallest group id differ is in several groups
        split_N = segments.maximum(group_N, trajectory_N, everyone_N) != segments.minimum(group_N, trajectory_N, everyone_N)
        if bool(split_N.any()):
            one = int(trajectory_N[split_N][0])
            raise ValueError(f"{method}: the steps of trajectory {one} are in several groups; a group is a task")
        steps_N = segments.count(trajectory_N, everyone_N)
        whole_N = segments.count(trajectory_N, x.valid_N) == steps_N
        # of each whole attempt the row that comes first
        place_N = torch.arange(len(trajectory_N), dtype=torch.float64)
        first_N = whole_N & (segments.minimum(place_N, trajectory_N, everyone_N) == place_N)
        return Attempts(trajectory_N, whole_N, first_N, steps_N)

    def totals(self, reward_N: Tensor) -> Tensor:
        """Sum the rewards of each row's attempt.

        Returns:
            [N] float64; 0 for the rows of attempts that are not whole.
        """
        # mean times number: the sum; attempts that are not whole have no member that counts, hence 0
        return segments.mean(reward_N, self.trajectory_N, self.whole_N) * self.steps_N

    def spread(self, value_N: Tensor) -> Tensor:
        """Copy what stands at each whole attempt's first row to all of its rows.

        Returns:
            [N] float64; 0 for the rows of attempts that are not whole.
        """
        return torch.where(self.whole_N, segments.mean(value_N, self.trajectory_N, self.first_N), torch.zeros_like(value_N))


def before(trajectory_N: Tensor, turn_N: Tensor, method: str) -> list[int]:
    """Find the row of the turn before each row. Turns that are not there are passed over.

    Returns:
        Places of these rows; -1 for first turns.

    Raises:
        ValueError: two rows of an attempt are the same turn.
    """
    order = sorted(range(len(turn_N)), key=lambda n: (int(trajectory_N[n]), int(turn_N[n])))
    out = [-1] * len(order)
    for one, other in itertools.pairwise(order):
        if trajectory_N[one] == trajectory_N[other]:
            if turn_N[one] == turn_N[other]:
                raise ValueError(f"{method}: trajectory {int(trajectory_N[one])} has two rows of turn {int(turn_N[one])}")
            out[other] = one
    return out


def returns(reward_N: Tensor, before_N: Sequence[int], gamma: float) -> Tensor:
    """Sum the rewards from each turn on, with a discount: Q_t = r_t + gamma * Q_(t+1).

    Returns:
        [N] float64; NaN spreads backwards.
    """
    out = [float(r) for r in reward_N.detach()]
    # last turns are those that are before no other; from each the sum is carried back turn by turn
    follows = {one for one in before_N if one >= 0}
    ends = [n for n in range(len(out)) if n not in follows]
    for n in ends:
        while before_N[n] >= 0:
            out[before_N[n]] += gamma * out[n]
            n = before_N[n]
    return torch.tensor(out, dtype=torch.float64)


def regrouped(value_N: Tensor, key_N: Tensor, counted_N: Tensor, *, ddof: int | None = None, epsilon: float = 0.0) -> Tensor:
    """Subtract the mean of the rows with the same key, and divide by their deviation where `ddof` is given.

    Returns:
        [N] float64; exactly 0 for rows that are alone, all the same, or not counted.
    """
    centred_N = value_N - segments.mean(value_N, key_N, counted_N)
    if ddof is not None:
        centred_N = centred_N / (segments.std(value_N, key_N, counted_N, ddof=ddof) + epsilon)
    live_N = counted_N & ~segments.flat(value_N, key_N, counted_N)
    return torch.where(live_N, centred_N, torch.zeros_like(centred_N))


def check_gamma(gamma: float, method: str) -> None:
    """Check a discount.

    Raises:
        ValueError: it is outside [0, 1].
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"{method}: gamma is {gamma}; it must be within 0 and 1")
