"""Two methods over several runs of each, on two levels: seeds, and seeds and questions together (`metrics.intervals`).

Runs are paired by `run.seed` where both sides have the same seeds, and each pair its base model and data; elsewhere a shared number means
nothing, and the sides are compared as two samples (Welch). The first interval, over seeds, is for these questions. The second adds the
variance of the questions' mean differences (questions about one medium count once) to that over seeds, with the same quantile: it is
never narrower, as it has one source of noise more. What is decided is decided over seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vlmrl import __version__, fs
from vlmrl.errors import ConfigError
from vlmrl.evals.score.compare import FolderComparison, compare_folders
from vlmrl.evals.score.evaluation import load_evaluation
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.paired import LOWER_IS_BETTER, plain
from vlmrl.evals.score.records import by_sample
from vlmrl.evals.score.runfiles import evaluation_at
from vlmrl.evals.score.table import COUNTS, UNBOUNDED, Cells, Paragraphs, figure, markdown, p_text, range_text, signed, visible
from vlmrl.evals.score.values import Values, metric_values
from vlmrl.extras.seeds.pairing import Sides, sides_of
from vlmrl.metrics.holm import holm
from vlmrl.metrics.intervals import ALPHA, paired_seeds, question_variance, unpaired_seeds

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True, kw_only=True)
class SeedsTask:
    """The primary metric of one task over the seeds."""

    task: str
    metric: str
    questions: int
    """Answered in every evaluation."""
    a: float
    """Mean over the runs."""
    b: float
    a_by_seed: tuple[float, ...]
    b_by_seed: tuple[float, ...]
    difference: float
    low: float | None
    """95% t interval over the seeds; None where nothing varies."""
    high: float | None
    wide_low: float | None
    """Over seeds and questions; None for fewer than ten media."""
    wide_high: float | None
    why: str
    """Why there is no interval over seeds."""
    wide_why: str
    p: float
    """Two-sided, of the t test over the seeds."""
    p_holm: float
    regressed: bool


@dataclass(frozen=True, kw_only=True)
class SeedsComparison:
    """What `compare_seeds` found; prints in rich."""

    sides: Sides
    tolerance: float
    tasks: tuple[SeedsTask, ...]
    warnings: tuple[str, ...]

    @property
    def regressed(self) -> tuple[str, ...]:
        """Tasks whose primary metric is worse by more than the tolerance, with an interval over seeds beyond 0."""
        return tuple(x.task for x in self.tasks if x.regressed)

    def lines(self) -> list[str]:
        """The verdict, and what the numbers are."""
        verdict = f"no regression: no primary metric is worse by more than {self.tolerance:g} with an interval over seeds that excludes 0"
        return [
            f"regressed: {', '.join(self.regressed)}" if self.regressed else verdict,
            f"95% intervals: {self.sides.design()}; the second is over seeds and questions, for questions that were not asked",
            *(["A and B are one recipe: a difference is one between seeds, not between methods"] if self.sides.one_recipe else []),
        ]

    def cells(self) -> Cells:
        """A row per task."""
        rows = [["task", "n", "metric", "A", "B", "B - A", "over seeds and questions", "p", "p (Holm)", "by seed", "verdict"]]
        for x in self.tasks:
            rows.append(
                [
                    *(x.task, str(x.questions), LABELS.get(x.metric, x.metric), figure(x.metric, x.a), figure(x.metric, x.b)),
                    f"{signed(x.metric, x.difference)} {range_text(x.metric, x.low, x.high, x.why)}",
                    range_text(x.metric, x.wide_low, x.wide_high, x.wide_why),
                    *(p_text(x.p), p_text(x.p_holm), self._by_seed(x), "regressed" if x.regressed else ""),
                ]
            )
        return rows

    def _by_seed(self, x: SeedsTask) -> str:
        """Differences of pairs, or the values of both sides."""
        if self.sides.paired:
            return " ".join(signed(x.metric, b - a) for a, b in zip(x.a_by_seed, x.b_by_seed, strict=True))
        return " against ".join(" ".join(figure(x.metric, value) for value in side) for side in (x.a_by_seed, x.b_by_seed))

    def told(self) -> list[str]:
        """What the terminal shows: a few short lines for each task, which a table of as many columns would break."""
        out = [f"{name}: {' '.join(paths)}" for name, paths in zip("AB", self.sides.texts(), strict=True)]
        header, *rows = self.cells()
        for row in rows:
            x = dict(zip(header, row, strict=True))
            runs = " and ".join(dict.fromkeys(str(len(side)) for side in (self.sides.a, self.sides.b)))
            out.append(f"{x['task']}: {x['metric']}, {runs} seeds x {x['n']} questions{', regressed' if x['verdict'] else ''}")
            out += [f"  A {x['A']}, B {x['B']}; by seed {x['by seed']}", f"  B - A {x['B - A']}, p {x['p']}, {x['p (Holm)']} by Holm"]
            out.append(f"  over seeds and questions {x['over seeds and questions']}")
        return [*out, *self.lines()]

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(Paragraphs((f"warning: {text}" for text in self.warnings), style="yellow"), Paragraphs(self.told()))

    def markdown(self) -> str:
        """The same as Markdown."""
        out = ["# Two methods over seeds\n"]
        out += ["Warnings:\n\n" + "".join(f"- {visible(text)}\n" for text in self.warnings)] if self.warnings else []
        out.append("".join(f"- {name}: {visible(', '.join(paths))}\n" for name, paths in zip("AB", self.sides.texts(), strict=True)))
        return "\n".join([*out, markdown(self.cells()), "".join(f"- {visible(line)}\n" for line in self.lines())])

    def json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            **{"sides": [list(side) for side in self.sides.texts()], "seeds": plain(self.sides.seeds), "vlmrl": __version__},
            **{"paired": self.sides.paired, "design": self.sides.design(), "one_recipe": self.sides.one_recipe},
            **{"tolerance": self.tolerance, "warnings": list(self.warnings), "regressed": list(self.regressed)},
            "tasks": [plain(x) for x in self.tasks],
        }

    def write(self, folder: Path) -> None:
        """Write `comparison.md` and `comparison.json`.

        Raises:
            StorageError: they cannot be written.
        """
        fs.mkdir(folder)
        fs.write_text(folder / "comparison.json", json.dumps(self.json(), indent=1, sort_keys=True, allow_nan=False) + "\n")
        fs.write_text(folder / "comparison.md", self.markdown())


def compare_seeds(first: Sequence[Path], second: Sequence[Path], *, tolerance: float = 0.0, force: bool = False) -> SeedsComparison:
    """Compare two methods, each by one evaluation per seed.

    Args:
        first, second: runs (of which the last evaluation is meant), folders of `vlmrl eval`, or files of records; at least two of each.
        tolerance: a primary metric may be worse by so much, in its own unit.
        force: compare what is not comparable, and say so in `warnings`.

    Raises:
        ConfigError: a side has one evaluation, or a seed twice; or a run has no evaluation.
        Incomparable: the evaluations were not asked the same in the same way.
        StorageError: a file is missing or damaged.
    """
    sides = sides_of(first, second)
    # pairs, or each run with the first one of the other side: then all were asked alike
    pairs = list(zip(sides.a, sides.b, strict=True)) if sides.paired else []
    pairs = pairs or [*((sides.a[0], b) for b in sides.b), *((a, sides.b[0]) for a in sides.a[1:])]
    done = [compare_folders(a, b, tolerance=tolerance, force=force) for a, b in pairs]
    warnings = list(dict.fromkeys(text for one in done for text in one.warnings))
    common = [x.task for x in done[0].tasks if all(x.task in {y.task for y in other.tasks} for other in done)]
    lost = sorted({x.task for one in done for x in one.tasks} - set(common))
    warnings += [f"tasks that some seeds lack are left out: {', '.join(lost)}"] if lost else []
    primaries = {name: metric for name in common if (metric := _primary(done, name)) is not None}
    if not primaries:
        raise ConfigError("no task with a primary metric is in the evaluations of all seeds")
    tasks = [_task(name, metric, sides, tolerance) for name, metric in primaries.items()]
    return SeedsComparison(sides=sides, tolerance=tolerance, tasks=_corrected(tasks), warnings=tuple(warnings))


def _primary(done: Sequence[FolderComparison], task: str) -> str | None:
    names = {x.primary for one in done for x in one.tasks if x.task == task}
    return names.pop() if len(names) == 1 else None


def _task(name: str, metric: str, sides: Sides, tolerance: float) -> SeedsTask:
    """One task; `p_holm` is filled in when all tasks are done."""
    a, b = ([_values(path, name, metric) for path in side] for side in (sides.a, sides.b))
    shared = [question for question in a[0] if all(question in values for values in (*a, *b))]
    if not shared:
        raise ConfigError(f"task '{name}': no question was answered in all {len(a) + len(b)} evaluations")
    means_a, means_b = ([fmean(values[q][0] for q in shared) for values in side] for side in (a, b))
    resolution = 0.0 if metric in UNBOUNDED and metric not in COUNTS else 1 / len(shared)
    effect = (paired_seeds if sides.paired else unpaired_seeds)(means_a, means_b, resolution)
    by_question = [_mean_of(b, q) - _mean_of(a, q) for q in shared]
    seeds, wide = effect.bounds(), effect.bounds(question_variance(by_question, [a[0][q][1] for q in shared]))
    loss, nearest = (effect.difference, seeds.low) if metric in LOWER_IS_BETTER else (-effect.difference, seeds.high)
    beyond = nearest is not None and (nearest > 0 if metric in LOWER_IS_BETTER else nearest < 0)
    return SeedsTask(
        **{"task": name, "metric": metric, "questions": len(shared), "a": fmean(means_a), "b": fmean(means_b)},
        **{"a_by_seed": tuple(means_a), "b_by_seed": tuple(means_b), "difference": effect.difference},
        **{"low": seeds.low, "high": seeds.high, "why": seeds.why, "wide_low": wide.low, "wide_high": wide.high, "wide_why": wide.why},
        **{"p": effect.p, "p_holm": effect.p, "regressed": loss > tolerance and beyond and effect.p < ALPHA},
    )


def _mean_of(side: Sequence[Values], question: str) -> float:
    return fmean(values[question][0] for values in side)


def _values(path: Path, task: str, metric: str) -> Values:
    """Values of a metric by question. A file is the task of its own name or of its records, as `compare_folders` has it."""
    at = evaluation_at(path)
    side = load_evaluation(at)
    if task not in side.records:
        side = load_evaluation(at, task=task)
    return metric_values(by_sample(side.records[task])).get(metric, {})


def _corrected(tasks: Sequence[SeedsTask]) -> tuple[SeedsTask, ...]:
    return tuple(replace(x, p_holm=p) for x, p in zip(tasks, holm([x.p for x in tasks]), strict=True))
