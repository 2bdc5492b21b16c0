"""From the folder of a finished run to its measures: curves on held-out questions, the training's own figures, mechanisms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.claims.recorder import groups_file
from benchmarks.claims.regimes import RECORDER
from benchmarks.common import BenchmarkError
from vlmrl.extras.study.stats import area

if TYPE_CHECKING:
    from vlmrl.evals.score.records import Record

FIRST = 3
"""Steps that stand for the beginning of RL."""


def scores_of(records: Sequence[Record]) -> dict[str, float]:
    """Means over the records of one evaluation, for all that these records have."""
    from vlmrl.evals.score.measures import is_right, main_score

    def mean(value: Callable[[Record], float | None], part: Callable[[Record], bool] = lambda r: True) -> float | None:
        values = [v for r in records if part(r) and (v := value(r)) is not None]
        return fmean(values) if values else None

    def right(record: Record) -> float:
        return float(is_right(record))

    def thinks(record: Record) -> float:
        return float(record.think.has)

    found: dict[str, float | None] = {
        "score": mean(main_score),
        "accuracy": mean(right),
        "miou": mean(lambda r: r.scores.get("tiou")),
        "tokens": mean(lambda r: None if r.n_out is None else float(r.n_out)),
        "thinks": mean(thinks),
    }
    for level in ("easy", "hard"):
        found[f"accuracy {level}"] = mean(right, lambda r, level=level: r.category == level)
        found[f"thinks {level}"] = mean(thinks, lambda r, level=level: r.category == level)
    if any("consistency" in r.scores for r in records):
        found["inconsistent"] = mean(lambda r: None if "consistency" not in r.scores else 1 - r.scores["consistency"])
        found["right and consistent"] = mean(lambda r: right(r) * float(r.scores.get("consistency") == 1))
    tasks = sorted({r.task for r in records})
    if len(tasks) > 1:
        found |= {f"score {task}": mean(main_score, lambda r, task=task: r.task == task) for task in tasks}
        found["score"] = fmean(value for task in tasks if (value := found[f"score {task}"]) is not None)
        found["best task"] = max(value for task in tasks if (value := found[f"score {task}"]) is not None)
    out = {name: value for name, value in found.items() if value is not None}
    for name, a, b, sign in (("easy - hard", "accuracy easy", "accuracy hard", 1), ("skips easy - hard", "thinks easy", "thinks hard", -1)):
        if a in out and b in out:
            out[name] = sign * (out[a] - out[b])
    return out


def curve_measures(points: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """`start X`, `end X` and `auc X` (mean height of the curve) of everything that each evaluation has, and the least gain of a task.

    Args:
        points: (step, means) in order, from step 0.
    """
    shared = set.intersection(*(set(means) for _, means in points))
    out: dict[str, float] = {f"start {name}": value for name, value in points[0][1].items()}
    out |= {f"end {name}": value for name, value in points[-1][1].items()}
    out |= {f"auc {name}": area([(step, means[name]) for step, means in points]) for name in sorted(shared)}
    gains = [out[f"auc {name}"] - points[0][1][name] for name in shared if name.startswith("score ")]
    if gains:
        out["auc least gain"] = min(gains)
    return out


def training_measures(lines: Sequence[Mapping[str, Any]], *, prompts: int) -> dict[str, float]:
    """Figures of the RL steps in `metrics.jsonl`. `prompts`: of a step."""
    steps = [line for line in lines if "frac_reward_zero_std" in line]
    out: dict[str, float] = {}
    if not steps:
        return out
    out["mixed groups"] = fmean(min(1.0, float(line["groups_with_signal"]) / prompts) for line in steps)
    batches = [float(line["rollout/attempts"]) for line in steps if "rollout/attempts" in line]
    if batches:
        out["batches per step"] = fmean(batches)
    thoughts = [float(line["completions/think_rate"]) for line in steps[:FIRST] if "completions/think_rate" in line]
    if thoughts:
        out["sampled thoughts, first steps"] = fmean(thoughts)
    return out


def points_of(run: Path, stage: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """(RL step, means) of each evaluation of a run: of its start, within the stage, behind it.

    Raises:
        StorageError: records are missing or damaged.
        BenchmarkError: the run has no evaluation of its start.
    """
    from vlmrl.evals.score.records import read_records

    found: dict[int, Path] = {}
    for name in json.loads((run / "eval/order.json").read_text(encoding="utf-8")):
        begun, _, step = name.partition("@")
        found[0 if begun != stage["name"] else int(step or stage["steps"])] = run / f"eval/{name}.jsonl"
    if 0 not in found:
        raise BenchmarkError(f"{run}: nothing says how its start answered; delete the run's folder, and run the same command again")
    return [(place, scores_of(read_records(found[place]))) for place in sorted(found)]


def mechanism_measures(groups: Path, stage: Mapping[str, Any]) -> dict[str, float]:
    """Mechanisms on the recorded groups of a run.

    Raises:
        BenchmarkError: steps are missing.
    """
    from benchmarks.claims import mechanisms
    from benchmarks.claims.recorder import read_steps

    weights = {reward.get("label") or reward["name"]: float(reward.get("weight", 1.0)) for reward in stage["rewards"]}
    steps = read_steps(groups, stage["steps"], weights)
    out = {"mixed groups": mechanisms.mixed_groups(steps)}
    if "temporal_iou" in weights:
        out |= mechanisms.sampled_rewards(steps, "temporal_iou") | mechanisms.ground_truth_row(steps, "temporal_iou")
    return out | mechanisms.several_tasks(steps) | mechanisms.small_groups(steps)


def of_run(run: Path) -> dict[str, float]:
    """Everything that a finished run of an arm says about itself: a measure of a study (`vlmrl.extras.study`).

    Raises:
        StorageError, BenchmarkError: files are missing or damaged.
    """
    from vlmrl.evals.score.runfiles import read_run

    found = read_run(run)
    stage, groups = found.config["stages"][-1], groups_file(run)
    out = curve_measures(points_of(run, stage))
    out |= training_measures(found.metrics, prompts=stage["rollout"]["prompts_per_step"])
    recorded = any(shaping["name"] == RECORDER["name"] for shaping in stage["reward_shaping"])
    return out | mechanism_measures(groups, stage) if recorded else out
