"""Curves in groups with words for names, over steps, answers or seconds: of one run, or the mean of several and its spread over seeds.

A few groups tell how a run went; all other metrics are in a document of their own.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmrl.evals.score.timeshare import MILESTONE, TOTAL
from vlmrl.extras.pages.documents.shapes import Doc, stage_words
from vlmrl.extras.pages.documents.source import Points, Source

POINTS = 400
"""Most points of a curve; longer ones are means of stretches."""
PHASES = 5
"""Phases of a step that have a curve."""
HELD_OUT = ("eval/score", "eval/miou", "eval/accuracy", "eval/think_rate", "eval/parse_rate", "eval/*/macro", "eval/*/score")
"""Metrics of the evaluations in a run, drawn from one to the next."""
SPOKEN = {
    "reward": "sum",
    "rewards/(.+)/mean": r"\1",
    "frac_reward_zero_std": "all rewards equal",
    "filter/(.+)": r"left out by \1",
    "(?:completions|eval)/think_rate": "with thought",
    r"completions/think_rate/(?:\w+=)?(.+)": r"\1",
    "(?:completions|eval)/parse_rate": "readable",
    "completions/format_rate": "right form",
    "completions/clipped_ratio": "cut off",
    "completions/mean_length": "tokens",
    "tokens/forward": "computed",
    "tokens/saved": "saved by sharing",
    "eval/miou": "mIoU",
    "eval/(score|accuracy)": r"\1",
    "eval/(.+)/(macro|score)": r"\1",
    "distill/gap/(.+)": r"\1",
    "time/step_total": "whole step",
    "time/(.+)": r"\1",
}
"""Names of metrics, whole, as legends say them."""
LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Reward", "mean over sampled answers: the sum, and its parts before weighting", ("reward", "rewards/*/mean")),
    ("Gap to the teacher", "nats per sampled token, by what the rows show: log-prob of the policy less the teacher's", ("distill/gap/*",)),
    (
        "Form of the answers",
        "share of sampled answers",
        ("completions/think_rate", "completions/parse_rate", "completions/format_rate", "completions/clipped_ratio"),
    ),
    (
        "Thoughts by kind of question",
        "share of sampled answers with a thought, by what rows say of themselves",
        ("completions/think_rate/*",),
    ),
    ("Length", "tokens of a sampled answer, mean", ("completions/mean_length",)),
    (
        "Groups without signal",
        "share of groups whose rewards are all equal, and of rows left out by filters",
        ("frac_reward_zero_std", "filter/*"),
    ),
    (
        "Tokens of a step",
        "through the model in the update, and what repeating each prompt for every answer would add",
        ("tokens/forward", "tokens/saved"),
    ),
)
"""Title, note, and names of the metrics (`*` stands for any text) of each group of lines. A group without data is left out."""

Groups = dict[str, tuple[str, dict[str, list[tuple[Source, Points]]]]]
"""Title -> (note, metric -> the runs that have it)."""


def curves_doc(sources: Sequence[Source]) -> Doc:
    """The groups that tell how runs went: the values of one, or the mean of several and one standard deviation around it."""
    groups: Groups = {}
    for source in sources:
        for title, (note, series) in chosen(source).items():
            own = groups.setdefault(title, (note, {}))[1]
            for name, points in series.items():
                own.setdefault(name, []).append((source, points))
    return _drawn(sources[0], groups, spoken)


def metrics_doc(source: Source) -> Doc:
    """All metrics, by the first word of their name."""
    groups: Groups = {}
    for name, points in sorted(source.metrics.columns.items()):
        groups.setdefault(name.partition("/")[0], ("", {}))[1][name] = [(source, points)]
    return _drawn(source, groups, str)


def chosen(source: Source) -> dict[str, tuple[str, dict[str, Points]]]:
    """Title -> (note, series) of each group that has data."""
    columns = source.metrics.columns
    held = {name: columns[name] for name in matching(columns, HELD_OUT)}
    held = {name: points for name, points in held.items() if len(points) > 1}
    for name in [name for name in held if name.endswith("/score")]:
        if any(held[name] == points for other, points in held.items() if other != name):
            del held[name]  # of those that agree the named one is drawn
    out = {"Held-out questions": ("means of the evaluations, greedy answers", held)}
    for title, note, patterns in LINES:
        out[title] = note, {name: columns[name] for name in matching(columns, patterns)}
    out["Time of a step"] = "seconds, whole and by its longest phases", phase_series(source)
    return {title: group for title, group in out.items() if group[1]}


def matching(names: Sequence[str] | Mapping[str, Any], patterns: Sequence[str]) -> list[str]:
    """Names that fit a pattern, in the order of the patterns and then by name."""
    compiled = [re.compile(".+".join(map(re.escape, pattern.split("*")))) for pattern in patterns]
    return list(dict.fromkeys(name for pattern in compiled for name in sorted(names) if pattern.fullmatch(name)))


def phase_series(source: Source) -> dict[str, Points]:
    """Seconds of each step, whole and in its longest phases; the table of the run and the list of all metrics have the others."""
    phases = {
        name: points for name, points in source.metrics.columns.items() if name.startswith("time/") and not name.startswith(MILESTONE)
    }
    longest = sorted(phases, key=lambda name: (-sum(phases[name].values()), name))[: PHASES + 1]
    return {name: phases[name] for name in longest} if TOTAL in phases else {}


def spoken(name: str) -> str:
    """The name of a metric or phase as a legend says it."""
    found = (match.expand(words) for pattern, words in SPOKEN.items() if (match := re.fullmatch(pattern, name)))
    return next(found, name).replace("_", " ")


def axes(source: Source, steps: Sequence[int]) -> Doc:
    """What a step can be measured in: its number, the answers or rows that were trained on until then, the seconds since the start."""
    counts = samples_of(source)
    walls = source.metrics.walls
    begin = min(walls.values(), default=0.0)
    return {
        "step": list(steps),
        "samples": None if counts is None else [counts(step) for step in steps],
        "seconds": [round(walls[step] - begin, 2) for step in steps] if all(step in walls for step in steps) else None,
    }


def samples_of(source: Source) -> Any:
    """Global step -> rows and answers that were trained on until then, by the recipe; None where it does not say how many a step has."""
    begun: list[tuple[int, int, int]] = []
    for name, (first, last) in source.metrics.stages.items():
        stage = source.stages.get(name, {})
        rollout: Any = stage.get("rollout") or {}
        each = stage.get("batch") or (rollout.get("num_generations") or 0) * (rollout.get("prompts_per_step") or 0)
        if not isinstance(each, int) or not each:
            return None
        begun.append((first, last, each))
    return lambda step: sum(each * max(0, min(step, last) - first + 1) for first, last, each in begun)


def _drawn(first: Source, groups: Groups, named: Callable[[str], str]) -> Doc:
    """Groups as JSON values; series with the same steps share their x. `first`: whose stages are shown."""
    xs: dict[tuple[str, tuple[int, ...]], Doc] = {}
    out: list[Doc] = []
    for title, (note, series) in groups.items():
        drawn: list[Doc] = []
        for name, runs in series.items():
            steps, curve = band([points for _, points in runs])
            key = runs[0][0].name, tuple(steps)
            xs.setdefault(key, axes(runs[0][0], steps))
            drawn.append({"key": name, "name": named(name), "x": list(xs).index(key), **curve})
        out.append({"title": title, "note": note, "series": drawn})
    stages = [{"words": stage_words(name), "from": start, "to": end} for name, (start, end) in first.metrics.stages.items()]
    return {"stages": stages, "xs": list(xs.values()), "groups": out}


def band(runs: Sequence[Points], most: int = POINTS) -> tuple[list[int], Doc]:
    """Mean and spread of a curve over runs, at the steps that all of them have; of runs without a step in common those of the first.

    Returns:
        Steps, and `n` runs with `y`, `low` and `high` (None for one run); beyond `most` steps a value is the mean of a stretch of steps and
        stands at the last of them.
    """
    shared = set.intersection(*map(set, runs)) or set(runs[0])
    own = [points for points in runs if shared <= set(points)]
    steps = sorted(shared)
    size = -(-len(steps) // most) or 1
    parts = [steps[i : i + size] for i in range(0, len(steps), size)]
    values = [[statistics.fmean(points[step] for step in part) for points in own] for part in parts]
    ends = [(m - s, m + s) for v in values for m, s in [(statistics.fmean(v), statistics.stdev(v))]] if len(own) > 1 else None
    low, high = (None if ends is None else [_rounded(one[side]) for one in ends] for side in (0, 1))
    return [part[-1] for part in parts], {"n": len(own), "y": [_rounded(statistics.fmean(v)) for v in values], "low": low, "high": high}


def _rounded(value: float) -> float | None:
    """Six digits: more are not seen, and a document of all curves is half as long."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
