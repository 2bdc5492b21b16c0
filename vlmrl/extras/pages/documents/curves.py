"""Curves in groups with words for names, over steps, answers or seconds; of several runs their mean and its spread over seeds.

A few groups tell how a run went; all other metrics are in a document of their own.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.evals.score.timeshare import MILESTONE, TOTAL, UNEXPLAINED
from vlmrl.extras.pages.documents.shapes import Doc, stage_words
from vlmrl.extras.pages.documents.source import Source, stages_of

POINTS = 400
"""Most points of a curve; longer ones are means of stretches."""
NAMED = 5
"""Phases of a step with an area of their own, where there are more than one further; the rest share one."""
REST = "other phases"
HELD_OUT = ("eval/score", "eval/miou", "eval/accuracy", "eval/think_rate", "eval/parse_rate", "eval/*/macro", "eval/*/score")
"""Metrics of the evaluations in a run, drawn from one to the next."""
SPOKEN = {
    "reward": "sum",
    "frac_reward_zero_std": "all rewards equal",
    "completions/think_rate": "with thought",
    "completions/parse_rate": "readable",
    "completions/format_rate": "right form",
    "completions/clipped_ratio": "cut off",
    "completions/mean_length": "tokens",
    "tokens/forward": "computed",
    "tokens/saved": "saved by sharing",
    "eval/score": "score",
    "eval/miou": "mIoU",
    "eval/accuracy": "accuracy",
    "eval/think_rate": "with thought",
    "eval/parse_rate": "readable",
}
"""Names of metrics as legends say them."""
_SPOKEN = (
    (re.compile(r"rewards/(.+)/mean"), r"\1"),
    (re.compile(r"filter/(.+)"), r"left out by \1"),
    (re.compile(r"completions/think_rate/(?:\w+=)?(.+)"), r"\1"),
    (re.compile(r"eval/(.+)/(macro|score)"), r"\1"),
    (re.compile(r"distill/gap/(.+)"), r"\1"),
    (re.compile(r"time/(.+)"), r"\1"),
)
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
)
"""Title, note, and names of the metrics (`*` stands for any text) of each group of lines. A group without data is left out."""
TOKENS = ("tokens/forward", "tokens/saved")

Points = dict[int, float]
"""Global step -> value."""


def curves_doc(source: Source) -> Doc:
    """The groups that tell how a run went."""
    return {"stages": stage_bands(source), **_drawn(source, chosen(source))}


def metrics_doc(source: Source) -> Doc:
    """All metrics, by the first word of their name."""
    groups: dict[str, dict[str, Points]] = {}
    for name in sorted(source.metrics.columns):
        groups.setdefault(name.partition("/")[0], {})[name] = points_of(source, name)
    return {"stages": stage_bands(source), **_drawn(source, [(title, "", False, series) for title, series in groups.items()], spoken=False)}


def stage_bands(source: Source) -> list[Doc]:
    """The stages that have begun, with their first and last global step."""
    kinds = {stage["name"]: stage.get("kind") for stage in stages_of(source.config)}
    steps = {stage["name"]: stage.get("steps") for stage in stages_of(source.config)}
    return [
        {
            "name": name,
            "words": stage_words(name),
            "kind": kinds.get(name),
            "steps": steps.get(name),
            "from": first,
            "to": source.metrics.ends[name],
        }
        for name, first in source.metrics.stages
    ]


def chosen(source: Source) -> list[tuple[str, str, bool, dict[str, Points]]]:
    """(title, note, whether its areas are stacked, series) of each group that has data."""
    columns = source.metrics.columns
    held = {name: points_of(source, name) for name in matching(columns, HELD_OUT)}
    held = {name: points for name, points in held.items() if len(points) > 1}
    for name in [name for name in held if name.endswith("/score")]:
        if any(held[name] == points for other, points in held.items() if other != name):
            del held[name]  # of those that agree the named one is drawn
    out = [("Held-out questions", "means of the evaluations, greedy answers", False, held)] if held else []
    for title, note, patterns in LINES:
        found = {name: points_of(source, name) for name in matching(columns, patterns)}
        out += [(title, note, False, found)] if found else []
    if phases := phase_series(source):
        out.append(("Time of a step", "seconds by phase", True, phases))
    if all(name in columns for name in TOKENS):
        note = "through the model in the update, and what repeating each prompt for every answer would add"
        out.append(("Tokens of a step", note, True, {name: points_of(source, name) for name in TOKENS}))
    return out


def matching(names: Sequence[str] | Mapping[str, Any], patterns: Sequence[str]) -> list[str]:
    """Names that fit a pattern, in the order of the patterns and then by name."""
    compiled = [re.compile(".+".join(map(re.escape, pattern.split("*")))) for pattern in patterns]
    return list(dict.fromkeys(name for pattern in compiled for name in sorted(names) if pattern.fullmatch(name)))


def points_of(source: Source, name: str) -> Points:
    """The values of a metric, the newest of each step."""
    steps, values = source.metrics.columns[name]
    return dict(zip(steps, values, strict=True))


def phase_series(source: Source) -> dict[str, Points]:
    """Seconds of each step by phase, the longest first, each with a value at every step; what no phase explains comes last."""
    if TOTAL not in source.metrics.columns:
        return {}
    total = points_of(source, TOTAL)
    phases = {
        name: points_of(source, name)
        for name in source.metrics.columns
        if name.startswith("time/") and name != TOTAL and not name.startswith(MILESTONE)
    }
    ranked = sorted(phases, key=lambda name: (-sum(phases[name].get(step, 0.0) for step in total), name))
    named = ranked if len(ranked) <= NAMED + 1 else ranked[:NAMED]
    series = {name: [name] for name in named} | ({REST: ranked[NAMED:]} if len(named) < len(ranked) else {})
    out = {name: {step: sum(phases[m].get(step, 0.0) for m in of) for step in total} for name, of in series.items()}
    return out | {UNEXPLAINED: {step: max(0.0, total[step] - sum(points[step] for points in out.values())) for step in total}}


def spoken(name: str) -> str:
    """The name of a metric or phase as a legend says it."""
    for pattern, words in _SPOKEN:
        if pattern.fullmatch(name) and name not in SPOKEN:
            return pattern.sub(words, name).replace("_", " ")
    return SPOKEN.get(name, name.replace("_", " "))


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
    stages = {stage["name"]: stage for stage in stages_of(source.config)}
    begun: list[tuple[int, int, int]] = []
    for name, first in source.metrics.stages:
        stage = stages.get(name, {})
        rollout: Any = stage.get("rollout") or {}
        each = stage.get("batch") or (rollout.get("num_generations") or 0) * (rollout.get("prompts_per_step") or 0)
        if not isinstance(each, int) or not each:
            return None
        begun.append((first, source.metrics.ends[name], each))
    return lambda step: sum(each * max(0, min(step, last) - first + 1) for first, last, each in begun)


def _drawn(source: Source, groups: Sequence[tuple[str, str, bool, Mapping[str, Points]]], *, spoken: bool = True) -> Doc:
    xs: dict[tuple[int, ...], int] = {}
    out: list[Doc] = []
    for title, note, stacked, series in groups:
        drawn: list[Doc] = []
        for name, points in series.items():
            steps, values = thinned(points)
            x = xs.setdefault(tuple(steps), len(xs))
            drawn.append({"key": name, "name": _name(name, spoken), "x": x, "y": values, "dots": len(points) < POINTS / 10})
        out.append({"title": title, "note": note, "stacked": stacked, "series": drawn})
    return {"xs": [axes(source, steps) for steps in xs], "groups": out}


def _name(name: str, words: bool) -> str:
    return spoken(name) if words else name


def thinned(points: Points, most: int = POINTS) -> tuple[list[int], list[float | None]]:
    """Steps and values; beyond `most` a value is the mean of a stretch of steps and stands at the last of them."""
    steps = sorted(points)
    size = -(-len(steps) // most) or 1
    parts = [steps[i : i + size] for i in range(0, len(steps), size)]
    return [part[-1] for part in parts], [_rounded(statistics.fmean(points[step] for step in part)) for part in parts]


def _rounded(value: float) -> float | None:
    """Six digits: more are not seen, and a document of all curves is half as long."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def bands(arms: Mapping[str, Sequence[Source]]) -> list[Doc]:
    """The chosen groups of several runs: for each series of each arm the mean over its runs, and one standard deviation around it."""
    groups: dict[str, Doc] = {}
    for number, sources in enumerate(arms.values()):
        found = [{title: (note, series) for title, note, stacked, series in chosen(source) if not stacked} for source in sources]
        for title in dict.fromkeys(title for of_run in found for title in of_run):
            note = next(of_run[title][0] for of_run in found if title in of_run)
            group = groups.setdefault(title, {"title": title, "note": note, "series": []})
            names = dict.fromkeys(name for of_run in found for name in of_run.get(title, ("", {}))[1])
            for name in names:
                runs = [
                    (source, of_run[title][1][name])
                    for source, of_run in zip(sources, found, strict=True)
                    if name in of_run.get(title, ("", {}))[1]
                ]
                group["series"].append({"key": name, "name": spoken(name), "arm": number, **band(runs)})
    return list(groups.values())


def band(runs: Sequence[tuple[Source, Points]]) -> Doc:
    """Mean and spread of one curve over runs, at the steps that all of them have; of runs without a step in common those of the first."""
    shared = set.intersection(*(set(points) for _, points in runs)) or set(runs[0][1])
    own = [points for _, points in runs if shared <= set(points)]
    size = -(-len(shared) // POINTS) or 1
    order = sorted(shared)
    parts = [order[i : i + size] for i in range(0, len(order), size)]
    values = [[statistics.fmean(points[step] for step in part) for points in own] for part in parts]
    means = [statistics.fmean(of_step) for of_step in values]
    spread = [statistics.stdev(of_step) for of_step in values] if len(own) > 1 else None
    return {
        "n": len(own),
        **axes(runs[0][0], [part[-1] for part in parts]),
        "mean": [_rounded(mean) for mean in means],
        "low": None if spread is None else [_rounded(mean - one) for mean, one in zip(means, spread, strict=True)],
        "high": None if spread is None else [_rounded(mean + one) for mean, one in zip(means, spread, strict=True)],
    }
