"""From runs to measures, from measures of paired seeds to intervals, and from intervals to plain verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.claims_cells import Claim, Condition, Measures, rollouts_per_step

HOLDS, FAILS, OPEN = "holds here", "does not hold here", "cannot be told at this size"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A condition with what was measured: mean difference and its 95% t interval over seeds, paired by seed."""

    condition: Condition
    difference: float
    low: float
    high: float
    seeds: int
    verdict: str


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% t interval of values of independent seeds; infinite for fewer than two.

    Raises:
        ValueError: no values.
    """
    from scipy import stats

    if not values:
        raise ValueError("interval: no values")
    mean = fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def judge(condition: Condition, low: float, high: float) -> str:
    """What an interval of a difference says about a condition: only an interval that lies wholly on one side decides."""
    if condition.kind == "greater":
        return HOLDS if low > 0 else FAILS if high <= 0 else OPEN
    if condition.kind == "less":
        return HOLDS if high < 0 else FAILS if low >= 0 else OPEN
    return HOLDS if low > -condition.margin else FAILS if high <= -condition.margin else OPEN


def verdict(findings: Sequence[Finding]) -> str:
    """A claim holds if all of its conditions do, and does not if one of them is refuted."""
    verdicts = {finding.verdict for finding in findings}
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts or not findings else HOLDS


def find(claim: Claim, measured: Mapping[str, Mapping[int, Measures]]) -> list[Finding]:
    """The claim's conditions, judged. `measured`: arm -> seed -> measures; seeds that one of the two arms lacks are left out."""
    out: list[Finding] = []
    for condition in claim.conditions:
        own = measured.get(condition.arm, {})
        other = own if condition.than is None else measured.get(condition.than, {})
        seeds = sorted(s for s in own.keys() & other.keys() if condition.measure in own[s] and condition.measure in other[s])
        if not seeds:
            continue
        reference = 0.0 if condition.than is None else 1.0
        differences = [own[s][condition.measure] - reference * other[s][condition.measure] for s in seeds]
        mean, low, high = interval(differences)
        out.append(Finding(condition=condition, difference=mean, low=low, high=high, seeds=len(seeds), verdict=judge(condition, low, high)))
    return out


def rollouts_to(target: float, curve: Sequence[tuple[int, float]]) -> float:
    """Rollouts at which a curve of (rollouts, success) first reaches the target, by straight lines between its points.

    A curve that never does gives its last number of rollouts: a lower bound, which only a longer run could raise.

    Raises:
        ValueError: no points, or not in order.
    """
    if not curve or list(curve) != sorted(curve):
        raise ValueError(f"rollouts_to needs points in order of rollouts, got {list(curve)}")
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y0 >= target:
            return float(x0)
        if y1 >= target:
            return x0 + (x1 - x0) * (target - y0) / (y1 - y0)
    return float(curve[0][0] if curve[0][1] >= target else curve[-1][0])


def measures_of(run: Path) -> dict[str, float]:
    """Everything that a finished run says about itself: means of its last evaluation, gains by task over its first one, moments of
    the advantages, means over the RL steps.

    Raises:
        StorageError: records or metrics are missing or damaged.
    """
    from vlmrl.evals.score.measures import main_score, parts_of
    from vlmrl.evals.score.records import read_records
    from vlmrl.evals.score.summary import summarize
    from vlmrl.train.tracking import read_metrics

    names = json.loads((run / "eval/order.json").read_text(encoding="utf-8"))
    first, last = read_records(run / f"eval/{names[0]}.jsonl"), read_records(run / f"eval/{names[-1]}.jsonl")
    out = {name: value for name, value in summarize(last, 0).means().items() if value is not None}
    before, after = parts_of(first), parts_of(last)
    tasks = [part for part in after if part.startswith("task=") and part in before]
    gains = {part.removeprefix("task="): fmean(map(main_score, after[part])) - fmean(map(main_score, before[part])) for part in tasks}
    out |= {f"gain {task}": value for task, value in gains.items()}
    if gains:
        out |= {"least gain": min(gains.values()), "mean gain": fmean(gains.values())}
    out |= {"score": fmean(map(main_score, last)), "score before": fmean(map(main_score, first))}
    out["gain"] = out["score"] - out["score before"]
    if any("grounding" in r.scores for r in last):
        faithful = [r.scores.get("consistency") == 1 and r.scores.get("grounding") == 1 for r in last]
        out["right and faithful"] = fmean(map(float, faithful))
    for level in ("easy", "hard"):
        part = f"difficulty={level}"
        if f"think_rate/{part}" in out:
            out[f"skips {level}"] = 1 - out[f"think_rate/{part}"]
        if f"exact/{part}" in out:
            out[f"exact {level}"] = out[f"exact/{part}"]
    if "skips easy" in out and "skips hard" in out:
        out["skips easy - hard"] = out["skips easy"] - out["skips hard"]
    return out | moments(read_metrics(run / "metrics.jsonl"))


def moments(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over the RL steps of skewness and kurtosis of the advantages, of all and by task, and the largest of the tasks."""
    steps = [line for line in lines if "advantage/skewness" in line]
    if not steps:
        return {}
    out: dict[str, float] = {}
    for what in ("skewness", "kurtosis"):
        keys = sorted({key for line in steps for key in line if key == f"advantage/{what}" or key.startswith(f"advantage/{what}/")})
        means = {key: fmean(float(line[key]) for line in steps if key in line) for key in keys}
        out |= {" ".join(key.removeprefix("advantage/").split("/")): value for key, value in means.items()}
        of_tasks = [abs(value) if what == "skewness" else value for key, value in means.items() if key.count("/") == 2]
        if of_tasks:
            out["largest |skewness|" if what == "skewness" else "largest kurtosis"] = max(of_tasks)
    out["|skewness|"] = abs(out["skewness"])
    return out


def curve_of(run: Path, measure: str, stage: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(rollouts, mean of a measure) each time that the held-out questions were asked: before an RL stage, within it, behind it.

    Raises:
        StorageError: records are missing or damaged.
    """
    from vlmrl.evals.score.records import read_records
    from vlmrl.evals.score.summary import summarize

    def at(name: str) -> int:
        begun, _, step = name.partition("@")
        return 0 if begun != stage["name"] else rollouts_per_step(stage) * int(step or stage["steps"])

    names = json.loads((run / "eval/order.json").read_text(encoding="utf-8"))
    points = [(at(name), summarize(read_records(run / f"eval/{name}.jsonl"), 0).means()[measure]) for name in names]
    return sorted((rollouts, value) for rollouts, value in points if value is not None)


def with_curve(claim: Claim, curve: Sequence[tuple[int, float]]) -> dict[str, float]:
    """The measures of a claim about the number of rollouts. `curve`: (rollouts, value) in order, from 0 rollouts."""
    assert claim.target is not None
    measure, share = claim.target
    (_, begin), *points = curve
    target = begin + share * (1 - begin)
    out: dict[str, float] = {f"{measure}@{rollouts}": value for rollouts, value in points}
    reached = max(value for _, value in points) >= target
    return out | {
        "rollouts to target": rollouts_to(target, curve),
        "target": target,
        "target reached": float(reached),
        "mean success": fmean(value for _, value in curve),
    }


def finite(value: float) -> float | None:
    """A number as JSON has it."""
    return value if math.isfinite(value) else None
