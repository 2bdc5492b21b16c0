"""Time profile of a run: seconds by phase, their share of the wall time, and what no phase explains.

A line of metrics covers the `time/step_total` seconds before its `wall` stamp. Lines may lie inside each other (the line at the
end of a run covers all of its process), so the wall time is the length of the union of these intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vlmrl.evals.score.table import Cells

TOTAL = "time/step_total"
MILESTONE = "time/to_"
"""Fields that start so say when something happened, not how long it took."""
PARTS = {"rollout": ("environment", "sampling")}
"""Phases that a line may divide further."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One row of the table."""

    name: str
    seconds: float
    share: float
    """Of the wall time, in [0, 1]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeShares:
    """Phases by falling time. `wall` = their sum + `unexplained`, up to the rounding of clocks."""

    wall: float
    phases: tuple[Phase, ...]
    unexplained: float
    unexplained_share: float
    milestones: Mapping[str, float]
    """`time/to_<event>` -> seconds, from the first line that has it."""


UNEXPLAINED = "unexplained"


def step_phases(lines: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, dict[str, float]]]:
    """List (global step, stage, phase -> seconds) of each step, with what no phase explains under `unexplained`.

    A step is the first line with a total of its global step: the line about the whole process comes after the last of them.
    """
    out: dict[int, tuple[int, str, dict[str, float]]] = {}
    for line in lines:
        if TOTAL not in line or int(line["global_step"]) in out:
            continue
        phases = _phases(line)
        phases[UNEXPLAINED] = max(0.0, float(line[TOTAL]) - sum(phases.values()))
        out[int(line["global_step"])] = (int(line["global_step"]), str(line["stage"]), phases)
    return list(out.values())


def time_shares(lines: Iterable[Mapping[str, Any]]) -> TimeShares:
    """Make the table of some lines of `metrics.jsonl` (all, or those of one stage). Lines without times count nothing.

    Returns:
        Seconds and shares by phase, those of the wall time that no phase explains, and milestones.
    """
    seconds: dict[str, float] = {}
    milestones: dict[str, float] = {}
    intervals: list[tuple[float, float]] = []
    loose = 0.0
    for line in lines:
        for key, value in line.items():
            if key.startswith(MILESTONE):
                milestones.setdefault(key.removeprefix(MILESTONE), float(value))
        for name, value in _phases(line).items():
            seconds[name] = seconds.get(name, 0.0) + value
        if TOTAL in line and "wall" in line:
            intervals.append((float(line["wall"]) - float(line[TOTAL]), float(line["wall"])))
        elif TOTAL in line:
            # without a stamp nobody knows where the interval lies: it is counted whole
            loose += float(line[TOTAL])
    wall = loose + covered(intervals)
    explained = sum(seconds.values())
    phases = [Phase(name=name, seconds=s, share=s / wall if wall > 0 else 0.0) for name, s in seconds.items()]
    rest = wall - explained
    return TimeShares(
        wall=wall,
        phases=tuple(sorted(phases, key=lambda phase: (-phase.seconds, phase.name))),
        unexplained=rest,
        unexplained_share=rest / wall if wall > 0 else 0.0,
        milestones=milestones,
    )


def _phases(line: Mapping[str, Any]) -> dict[str, float]:
    """Phase -> seconds. A divided phase is what its parts leave; parts that are more than it ran in a thread beside it and say nothing."""
    named = {key.removeprefix("time/"): value for key, value in line.items() if key.startswith("time/") and not key.startswith(MILESTONE)}
    out = {name: float(value) for name, value in named.items() if name != TOTAL.removeprefix("time/")}
    for whole, names in PARTS.items():
        parts = {name: out.pop(name) for name in names if name in out}
        if whole in out and (rest := out[whole] - sum(parts.values())) >= 0:
            out |= parts | {whole: rest}
    return out


def time_cells(shares: TimeShares) -> Cells:
    """Make cells of phase, seconds, share of the wall time; what no phase explains; the whole."""
    rows = [["phase", "seconds", "share"]]
    rows += [[phase.name, f"{phase.seconds:.1f}", f"{phase.share:.1%}"] for phase in shares.phases]
    rows.append(["unexplained", f"{shares.unexplained:.1f}", f"{shares.unexplained_share:.1%}"])
    rows.append(["wall", f"{shares.wall:.1f}", "100.0%" if shares.wall > 0 else "-"])
    return rows


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Measure the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        # by their starts: only what lies behind the furthest end so far is new
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
