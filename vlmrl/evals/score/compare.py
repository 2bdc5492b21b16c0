"""`vlmrl compare` compares two evaluations, task by task, on the questions that both answered (`docs/compare.md`).

Both sides are folders of `vlmrl eval` (or of an import), runs, or single records files. What was not asked in the same way is refused, not
averaged over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import __version__, fs, rng
from vlmrl.answers.base import ANSWER_TYPES, METRICS
from vlmrl.config.schema import OF_THE_MACHINE
from vlmrl.evals.score.evaluation import Evaluation, load_evaluation
from vlmrl.evals.score.measures import LABELS, main_score
from vlmrl.evals.score.paired import (
    LOWER_IS_BETTER,
    PROMPT,
    UPSTREAM,
    Comparison,
    Flip,
    Gap,
    Incomparable,
    Mismatch,
    compare_answers,
    flips,
    mismatches,
    plain,
)
from vlmrl.evals.score.recipes import ONE_RUN, method_of, recipe_of, recipe_seed
from vlmrl.evals.score.records import Record, by_sample
from vlmrl.evals.score.runfiles import evaluation_at
from vlmrl.evals.score.table import COUNTS, Cells, Paragraphs, difference_text, figure, markdown, p_text, range_text, visible
from vlmrl.evals.score.values import Of, is_scored
from vlmrl.metrics.holm import holm
from vlmrl.metrics.intervals import ALPHA, difference_interval

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN = 20
"""Flips per task in Markdown; `comparison.json` has all."""
_CUT = 400
"""Characters of a text in Markdown."""


@dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """One task on both sides."""

    task: str
    n: int
    """Samples answered by both."""
    primary: str | None
    """The metric that decides; None if nothing says which one does."""
    gaps: Mapping[str, Gap]
    better: int
    """Samples with a larger main score on the second side."""
    worse: int
    p_holm: float | None
    """p of the primary metric after Holm's correction over the tasks."""
    flips: tuple[Flip, ...]
    regressed: bool


@dataclass(frozen=True, kw_only=True)
class FolderComparison:
    """What `compare_folders` found; prints as short lines in rich."""

    models: tuple[str, str]
    paths: tuple[str, str]
    tolerance: float
    seed: int
    tasks: tuple[TaskComparison, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    """Tasks of the first and of the second side that the other lacks."""
    warnings: tuple[str, ...]
    """What differs and was forced, and what could not be checked."""
    seeds: tuple[int, int] | None = None
    """`run.seed` of both sides, if they are runs whose recipes differ in nothing else."""

    @property
    def regressed(self) -> tuple[str, ...]:
        """Tasks whose primary metric is worse by more than the tolerance, with an interval beyond 0; none of one recipe with two seeds."""
        return tuple(x.task for x in self.tasks if x.regressed)

    @property
    def macro(self) -> tuple[float, float] | None:
        """Mean of the tasks' primary metrics on both sides, each task counted once; None for fewer than two, or if one is a count."""
        found = [x.gaps[x.primary] for x in self.tasks if x.primary is not None]
        if len(found) < 2 or any(x.primary in COUNTS for x in self.tasks):
            return None
        return sum(g.a for g in found) / len(found), sum(g.b for g in found) / len(found)

    def verdict(self) -> str:
        """Say in one line what got worse beyond doubt, or that nothing did; of one recipe with two seeds that they cannot tell."""
        if self.seeds is not None:
            return "no verdict: one recipe with two seeds; compare several runs of each side"
        if self.regressed:
            return f"regressed: {', '.join(self.regressed)}"
        return f"no regression: no primary metric is worse by more than {self.tolerance:g} with a 95% interval that excludes 0"

    def lines(self) -> list[str]:
        """List the verdict, the macro mean, and tasks that one side lacks."""
        out = [self.verdict()]
        if self.macro is not None:
            a, b = self.macro
            first, second = zip(*((x.gaps[x.primary].a, x.gaps[x.primary].b) for x in self.tasks if x.primary is not None), strict=True)
            bounds = difference_interval(first, second, rng.generator(self.seed, "paired", "tasks"), shares=False)
            said = f"{a:.3f} -> {b:.3f}, {b - a:+.3f} {range_text('macro', bounds.low, bounds.high, bounds.why.replace('cluster', 'task'))}"
            out.append(f"macro mean over {len(first)} tasks (primary metrics, each task counted once): {said}")
        return out + [f"only in {path}: {', '.join(names)}" for path, names in zip(self.paths, self.only, strict=True) if names]

    def under(self) -> list[str]:
        """List what stands under the table of two single runs: what they cannot tell, and whether only their seed differs."""
        if self.seeds is None:
            return [ONE_RUN]
        both = ", ".join(map(str, self.seeds))
        return [ONE_RUN, f"the two runs differ in nothing but run.seed ({both}): a difference is one between seeds, not between methods"]

    def told(self) -> list[str]:
        """List what the terminal shows: a line for each metric, which a table of as many columns would break."""
        out = [name if name == path else f"{name}, {path}" for name, path in zip(self.models, self.paths, strict=True)]
        out = [f"{side}: {text}" for side, text in zip("AB", out, strict=True)]
        for x in self.tasks:
            out.append(f"{x.task}: {x.n} question{'' if x.n == 1 else 's'}, A -> B{', regressed' if x.regressed else ''}")
            _, *rows = self.metric_cells(x)
            for n, label, a, b, difference, p, test in rows:
                primary = x.primary is not None and label == LABELS.get(x.primary, x.primary)
                more = f", {p_text(x.p_holm)} by Holm, {len(x.flips)} flips" if primary and x.p_holm is not None else ""
                of = "" if n == str(x.n) else f", n {n}"
                out.append(f"  {label}{' (primary)' if primary else ''}{of}: {a} -> {b}, {difference}, p {p} {test}{more}")
            if x.primary is None:
                out.append("  no primary metric")
        return out

    def primary_cells(self) -> Cells:
        """Make a row per task: its primary metric."""
        rows = [["task", "n", "metric", *self.models, "difference", "p", "p (Holm)", "test", "flips", ""]]
        for x in self.tasks:
            if x.primary is None:
                rows.append([x.task, str(x.n), *["-"] * 7, f"{len(x.flips)}", "no primary metric"])
                continue
            holm_p = "-" if x.p_holm is None else p_text(x.p_holm)
            cells = _cells(x.primary, x.gaps[x.primary])
            rows.append([x.task, *cells[:-1], holm_p, cells[-1], str(len(x.flips)), "regressed" if x.regressed else ""])
        return rows

    def metric_cells(self, x: TaskComparison) -> Cells:
        """Make a row per metric of a task."""
        header = ["n", "metric", *self.models, "difference", "p", "test"]
        shown = {name: gap for name, gap in x.gaps.items() if name != "score" or x.primary == "score"}  # else it repeats another
        return [header, *(_cells(name, gap) for name, gap in shown.items())]

    def __rich__(self) -> Group:
        from rich.console import Group

        warnings = Paragraphs((f"warning: {text}" for text in self.warnings), style="yellow")
        return Group(warnings, Paragraphs([*self.told(), *self.lines(), *self.under()]))

    def markdown(self) -> str:
        """Write warnings, verdict, tables and the largest flips with both texts."""
        out = [f"# {visible(self.models[0])} -> {visible(self.models[1])}\n"]
        if self.warnings:
            out.append("Warnings:\n\n" + "".join(f"- {visible(text)}\n" for text in self.warnings))
        out.append("".join(f"- {visible(line)}\n" for line in self.lines()))
        out.append("## Primary metrics\n\n" + markdown(self.primary_cells()))
        out.append("".join(f"- {visible(line)}\n" for line in self.under()))
        for x in self.tasks:
            out.append(f"## {visible(x.task)}\n\n{markdown(self.metric_cells(x))}")
            if x.flips:
                out.append(f"### Flips of {visible(x.task)}\n\n{self._flips(x)}")
        return "\n".join(out)

    def _flips(self, x: TaskComparison) -> str:
        rows = [["sample", "change", *self.models]]
        for flip in x.flips[:_SHOWN]:
            texts = [" / ".join(_short(text) for text in side) for side in (flip.texts_a, flip.texts_b)]
            rows.append([flip.sample_id, f"{flip.a:.3f} -> {flip.b:.3f}", *texts])
        rest = len(x.flips) - _SHOWN
        return markdown(rows) + (f"\n{rest} more are in comparison.json.\n" if rest > 0 else "")

    def write(self, folder: Path) -> None:
        """Write `comparison.md` and `comparison.json`.

        Raises:
            StorageError: they cannot be written.
        """
        fs.mkdir(folder)
        fs.write_text(folder / "comparison.json", json.dumps(self.json(), indent=1, sort_keys=True, allow_nan=False) + "\n")
        fs.write_text(folder / "comparison.md", self.markdown())

    def json(self) -> dict[str, Any]:
        """Collect everything, as JSON values."""
        tasks = [plain(x) for x in self.tasks]
        return {
            **{"models": list(self.models), "paths": list(self.paths), "tolerance": self.tolerance, "seed": self.seed},
            **{"vlmrl": __version__, "warnings": list(self.warnings), "only": [list(side) for side in self.only]},
            **{"verdict": self.verdict(), "regressed": list(self.regressed), "macro_mean": plain(self.macro), "tasks": tasks},
            **{"note": ONE_RUN, "only_seed_differs": None if self.seeds is None else list(self.seeds)},
        }


def _short(text: str) -> str:
    """A text for a table cell, cut, on one line and with nothing that Markdown would take for a tag."""
    cut = " ".join(text.split())
    cut = cut if len(cut) <= _CUT else f"{cut[:_CUT]} [...]"
    return cut.replace("&", "&amp;").replace("<", "&lt;")


def _cells(name: str, x: Gap) -> list[str]:
    values = [figure(name, x.a), figure(name, x.b), difference_text(name, x)]
    return [str(x.n), LABELS.get(name, name), *values, p_text(x.p), x.test]


def compare_folders(a: Path, b: Path, *, tolerance: float = 0.0, force: bool = False, seed: int = 0) -> FolderComparison:
    """Compare two evaluations on every task that both have.

    Args:
        a, b: folders, runs (of which the last evaluation is meant) or records files, before and after. A file and a folder, or two files
            of one name, are matched by that name; files of different names by the task of their records.
        tolerance: a primary metric may be worse by so much, in its own unit.
        force: compare what is not comparable, over the samples that both have, and say so in `warnings`.
        seed: of the resampling.

    Raises:
        ConfigError: a run has no evaluation.
        Incomparable: no common task, or (without `force`) the two sides differ in what was asked, how, or by which program.
        StorageError: a file is missing or damaged.
        ValueError: a negative or non-finite tolerance.
    """
    if not 0 <= tolerance < float("inf"):
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance}")
    a, b = evaluation_at(a), evaluation_at(b)
    # beside a folder, or a file of its own name, a records file is one task named after itself; else it is parted by its records' task
    named = a.is_dir() != b.is_dir() or a.name == b.name
    first, second = (load_evaluation(path, task=path.stem if named and not path.is_dir() else None) for path in (a, b))
    common = [name for name in first.records if name in second.records]
    if not common:
        raise Incomparable(f"no task in common: {a} has {_names(first)}, {b} has {_names(second)}; evaluate both on the same suite")
    sides = {name: (by_sample(first.records[name]), by_sample(second.records[name])) for name in common}
    # all problems of all tasks are told at once
    problems = [problem for name in common for problem in (*_settings(first, second, name), *mismatches(name, *sides[name]))]
    problems = [_with_processors(problem, first, second) for problem in problems]
    if problems and not force:
        listing = "".join(f"\n  {problem.text()}" for problem in problems)
        raise Incomparable(f"{a} and {b} cannot be compared; evaluate both in the same way, or force it:{listing}")
    done: list[TaskComparison] = []
    for name in common:
        x, y = sides[name]
        # without `force` these are all: samples of one side only are a mismatch
        shared = [sample for sample in x if sample in y]
        if not shared:
            raise Incomparable(f"task '{name}': {a} and {b} have no sample in common; evaluate both on the same rows")
        done.append(
            _compare_task(name, {s: x[s] for s in shared}, {s: y[s] for s in shared}, _primary(first, second, name), seed, tolerance)
        )
    only = tuple(name for name in first.records if name not in second.records), tuple(n for n in second.records if n not in first.records)
    seeds = _only_seeds(a, b)
    if seeds is not None:  # one recipe against itself: seeds differ, and no method got worse
        done = [replace(x, regressed=False) for x in done]
    return FolderComparison(
        models=_labels(first, second),
        paths=(str(a), str(b)),
        tolerance=tolerance,
        seed=seed,
        tasks=_corrected(done),
        only=only,
        warnings=(*(problem.text() for problem in problems), *_unchecked(first, second, done)),
        seeds=seeds,
    )


def _only_seeds(a: Path, b: Path) -> tuple[int, int] | None:
    """The seeds of two evaluations, if they are of runs of one recipe with different ones."""
    first, second = recipe_of(a), recipe_of(b)
    if first is None or second is None or method_of(first) != method_of(second):
        return None
    seeds = recipe_seed(first), recipe_seed(second)
    return None if seeds[0] == seeds[1] else seeds


def _names(side: Evaluation) -> str:
    return ", ".join(side.records) or "none"


def _labels(first: Evaluation, second: Evaluation) -> tuple[str, str]:
    """Names of the two models; where these are equal the names of their runs, else their paths."""
    for x, y in ((first.model, second.model), (_run_of(first.path), _run_of(second.path))):
        if x != y and x and y:
            return x, y
    return str(first.path), str(second.path)


def _run_of(path: Path) -> str:
    """The name of the run whose evaluation this is; empty where it is none of a run."""
    folder = next((parent for parent in path.absolute().parents if parent.name == "eval"), None)
    return folder.parent.name if folder is not None and (folder.parent / "config.yaml").is_file() else ""


def _settings(first: Evaluation, second: Evaluation, task: str) -> list[Mismatch]:
    """What the summaries say differently about a task; the records say the rest."""
    samples = len({r.sample_id for r in first.records[task]})
    x, y = first.tasks.get(task, {}), second.tasks.get(task, {})
    pairs = [("the version of vlmrl", first.version, second.version)]
    pairs += [(what, x.get(key), y.get(key)) for key, what in _DEFINITION.items()]
    media_x, media_y = x.get("media") or {}, y.get("media") or {}
    pairs += [(f"media.{key}", media_x[key], media_y[key]) for key in sorted(set(media_x) & set(media_y) - OF_THE_MACHINE)]
    # what one side does not know (an earlier version, a file without its folder) is no difference
    unequal = [(what, p, q) for what, p, q in pairs if p is not None and q is not None and p != q]
    return [Mismatch(task=task, what=f"{what} differs", samples=samples, detail=f"{p} and {q}") for what, p, q in unequal]


def _with_processors(problem: Mismatch, first: Evaluation, second: Evaluation) -> Mismatch:
    """Prompts that differ, with the processors that made them where they are of two kinds."""
    x, y = first.processor, second.processor
    if not problem.what.startswith(PROMPT) or x is None or y is None or x == y:
        return problem
    return replace(problem, detail=f"processor {x} against {y}; {problem.detail}")


_DEFINITION = {
    "primary": "the primary metric",
    "extraction": "how answers are read",
    "scoring": "how answers are scored",
    "frame": "the frame of coordinates",
}


def _primary(first: Evaluation, second: Evaluation, task: str) -> str | None:
    """What the folders say, else the first metric of the records' answer type, else the only score of another harness."""
    stated = first.tasks.get(task, {}).get("primary") or second.tasks.get(task, {}).get("primary")
    if stated:
        return stated
    rows = [*first.records[task], *second.records[task]]
    kinds = {r.answer_type for r in rows}
    if all(map(is_scored, rows)):
        return ANSWER_TYPES[kinds.pop()].metrics[0].name if len(kinds) == 1 else "score"
    upstream = {key for r in rows for key in r.scores if key.startswith(UPSTREAM)}
    return upstream.pop() if len(upstream) == 1 else None


def _compare_task(
    task: str, a: dict[str, list[Record]], b: dict[str, list[Record]], primary: str | None, seed: int, tolerance: float
) -> TaskComparison:
    """One task; `p_holm` is filled in when all tasks are done.

    Raises:
        Incomparable: the primary metric applies to no sample on both sides.
    """
    found: Comparison = compare_answers(a, b, seed)
    if primary is not None and primary not in found.gaps:
        known = ", ".join(found.gaps)
        raise Incomparable(f"task '{task}': its primary metric '{primary}' cannot be compared on any sample; there is: {known}")
    scored = all(is_scored(r) for rows in (*a.values(), *b.values()) for r in rows)
    changed: list[Flip] = []
    if primary is not None and primary not in LOWER_IS_BETTER:
        changed = flips(a, b, _per_sample(primary, scored=scored))
    regressed = primary is not None and is_worse(found.gaps[primary], tolerance, lower_is_better=primary in LOWER_IS_BETTER)
    return TaskComparison(
        **{"task": task, "n": len(a), "primary": primary, "gaps": found.gaps, "better": found.better, "worse": found.worse},
        **{"p_holm": None, "flips": tuple(changed), "regressed": regressed},
    )


def _per_sample(primary: str, *, scored: bool) -> Of:
    """The primary metric of one record; the main score where the metric is one of groups."""
    if primary in METRICS:
        return METRICS[primary]
    return main_score if scored and not primary.startswith(UPSTREAM) else lambda r: r.scores.get(primary)


def is_worse(gap: Gap, tolerance: float, *, lower_is_better: bool = False) -> bool:
    """Decide whether b is worse than a by more than `tolerance`, with its interval all on that side of 0 and a test that agrees (p < 0.05).

    The test is exact, or nearly so, where the interval is an approximation. Without an interval nothing is beyond doubt.
    """
    loss, worse = (gap.difference, 1) if lower_is_better else (-gap.difference, -1)
    return loss > tolerance and gap.sign == worse and gap.p < ALPHA


def _corrected(tasks: list[TaskComparison]) -> tuple[TaskComparison, ...]:
    """The tasks with Holm's correction over their primary metrics."""
    tested = [x for x in tasks if x.primary is not None]
    # one test per task, its primary metric: the other metrics are shown and decide nothing
    adjusted = dict(zip((x.task for x in tested), holm([x.gaps[x.primary or ""].p for x in tested]), strict=True))
    return tuple(replace(x, p_holm=adjusted.get(x.task)) for x in tasks)


def _unchecked(first: Evaluation, second: Evaluation, tasks: list[TaskComparison]) -> list[str]:
    """What nobody could check."""
    out = [
        f"task '{x.task}' has no primary metric, so it cannot regress; give one in the suite or in the import"
        for x in tasks
        if not x.primary
    ]
    bare = [str(side.path) for side in (first, second) if side.version is None]
    return out + [
        f"{path} is of no run and has no summary.json beside it: program version and media settings are unchecked" for path in bare
    ]
