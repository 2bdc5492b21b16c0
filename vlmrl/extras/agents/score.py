"""How well episodes went: success with an interval, pass@k, turns. Faults are counted beside it and are in no denominator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vlmrl import rng
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.metrics.intervals import ConfidenceInterval, mean_interval
from vlmrl.metrics.stats import pass_at_k


@dataclass(frozen=True, kw_only=True)
class Played:
    """The numbers of some episodes."""

    attempts: int
    """Without a fault: what every share is of."""
    successes: int
    interval: ConfidenceInterval | None
    """95%, of the share of successes; None without attempts."""
    pass_at: dict[int, float]
    """k -> mean over the tasks with at least k whole attempts of the chance that one of k succeeds."""
    turns: float | None
    """Mean number of turns of successes."""
    told: dict[str, float] = field(default_factory=dict[str, float])
    """Means of the last numbers that the world said of each attempt, by name."""
    faults: Counter[str] = field(default_factory=Counter[str])

    @property
    def rate(self) -> float | None:
        return self.successes / self.attempts if self.attempts else None

    def lines(self) -> list[str]:
        """For the terminal."""
        out: list[str] = []
        if self.rate is None or self.interval is None:
            out.append("success: unknown, no episode is whole")
        else:
            x = self.interval
            of = f"({x.why})" if x.low is None or x.high is None else f"[{x.low:.3f}, {x.high:.3f}]"
            out.append(f"success: {self.rate:.3f} {of} ({self.successes} of {self.attempts} episodes)")
        if len(self.pass_at) > 1:
            out.append(", ".join(f"pass@{k} {value:.3f}" for k, value in self.pass_at.items()))
        if self.turns is not None:
            out.append(f"turns of successes: {self.turns:.1f}")
        if self.told:
            out.append("last said by the world (mean): " + ", ".join(f"{name} {value:g}" for name, value in sorted(self.told.items())))
        listed = ", ".join(f"{reason} {n}" for reason, n in sorted(self.faults.items())) or "none"
        return [*out, f"faults, in none of these numbers: {listed}"]


def score(groups: Sequence[Sequence[Trajectory]]) -> Played:
    """Of attempts at tasks, those at one task together.

    The interval is Wilson's where every task was tried once; else a bootstrap over tasks, as attempts at one are alike, if they are enough.
    """
    whole = [[one for one in group if one.fault is None] for group in groups]
    right = [[float(one.outcome == "success") for one in group] for group in whole]
    values = [value for group in right for value in group]
    solved = [one for group in whole for one in group if one.outcome == "success"]
    names = [n for n, group in enumerate(right) for _ in group]
    interval = mean_interval(values, rng.generator(0, "environment score"), names) if values else None
    most = max(map(len, right), default=0)
    said: dict[str, list[float]] = {}
    for one in (one for group in whole for one in group):
        for name, value in one.told.items():
            said.setdefault(name, []).append(value)
    return Played(
        attempts=len(values),
        successes=len(solved),
        interval=interval,
        pass_at={k: _mean([pass_at_k(len(g), int(sum(g)), k) for g in right if len(g) >= k]) for k in range(1, most + 1)},
        turns=_mean([float(len(one.turns)) for one in solved]) if solved else None,
        told={name: _mean(numbers) for name, numbers in said.items()},
        faults=Counter(one.fault for group in groups for one in group if one.fault is not None),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
