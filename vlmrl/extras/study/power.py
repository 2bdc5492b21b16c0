"""What a number of seeds can tell, by simulated experiments that are judged as the real one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.extras.study.stats import ONCE, Level

EXPERIMENTS = 20_000
ENOUGH = 0.8
"""Power that a number of seeds is wanted for."""
MOST = 500
"""Seeds beyond which no number is looked for."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Shares of simulated experiments that end with each verdict, where the premise is met."""

    holds: float
    no_effect: float

    @property
    def cannot_be_told(self) -> float:
        return 1 - self.holds - self.no_effect


def power(effect: float, sd: float, n: int, delta: float, *, seed: int = 0, experiments: int = EXPERIMENTS) -> Power:
    """Simulate experiments that are judged once: n normal differences with this mean and deviation.

    Raises:
        ValueError: fewer than two seeds, or a deviation that is not positive.
    """
    return power_of_looks(effect, sd, (n,), delta, (ONCE,), seed=seed, experiments=experiments)


def power_of_looks(
    effect: float, sd: float, looks: Sequence[int], delta: float, levels: Sequence[Level], *, seed: int = 0, experiments: int = EXPERIMENTS
) -> Power:
    """Simulate experiments that are judged after each number of seeds of `looks`, and end with the first verdict that decides.

    Raises:
        ValueError: fewer than two seeds at a look, or a deviation that is not positive.
    """
    import numpy as np
    from scipy import stats

    if min(looks) < 2 or sd <= 0:
        raise ValueError(f"power: needs two seeds or more and a positive deviation, got n={min(looks)}, sd={sd}")
    # the stream that published powers were drawn from: it is seeded, and no generator of the process
    draws = np.random.Generator(np.random.PCG64(seed)).normal(effect, sd, size=(experiments, looks[-1]))
    going, held, excluded = np.ones(experiments, dtype=bool), 0, 0
    for n, level in zip(looks, levels, strict=True):
        mean, error = draws[:, :n].mean(1), draws[:, :n].std(1, ddof=1) / math.sqrt(n)
        none = going & (mean + float(stats.t.ppf(1 - level.excluded, n - 1)) * error < delta)
        holds = going & (mean - float(stats.t.ppf(1 - level.interval / 2, n - 1)) * error > 0) & ~none
        held, excluded = held + int(holds.sum()), excluded + int(none.sum())
        going &= ~holds & ~none
    return Power(holds=held / experiments, no_effect=excluded / experiments)


def seeds_for(effect: float, sd: float, delta: float, share: float = ENOUGH) -> int | None:
    """Find the fewest seeds, judged once, with which so large a share of experiments would hold; None beyond `MOST`."""

    def enough(n: int) -> bool:
        return power(effect, sd, n, delta).holds >= share

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST:
            return None
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high
