"""Two methods over several seeds: paired by seed and question, with Student's t over the seeds.

A seed's difference is the mean over the questions that both of its runs answered. Seeds are few and each difference is itself a mean over
many questions, near enough to a normal law for a t interval; a bootstrap of three values covers less than it says. That interval is for
these questions. The second one, over seeds and questions, adds the variance of the questions' mean differences (questions about one medium
count once) to that over seeds, with the same quantile: it is never narrower, as it has one source of noise more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from vlmrl import __version__, fs
from vlmrl.errors import ConfigError
from vlmrl.evals.score.compare import ALPHA, FolderComparison, compare_folders, load_evaluation
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.paired import LOWER_IS_BETTER, plain
from vlmrl.evals.score.records import by_sample
from vlmrl.evals.score.runfiles import evaluation_at, read_run, seed_of
from vlmrl.evals.score.table import COUNTS, UNBOUNDED, Cells, figure, markdown, p_text, visible
from vlmrl.evals.score.values import Values, metric_values
from vlmrl.metrics.holm import holm

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True, kw_only=True)
class SeedsTask:
    """The primary metric of one task over the seeds."""

    task: str
    metric: str
    questions: int
    """Answered by both sides of every seed."""
    a: float
    """Mean over the seeds."""
    b: float
    by_seed: tuple[float, ...]
    """Differences b - a."""
    difference: float
    low: float
    high: float
    """95% t interval over the seeds."""
    wide_low: float
    wide_high: float
    """Over seeds and questions."""
    p: float
    """Two-sided, of the t test over the seeds."""
    p_holm: float
    regressed: bool


@dataclass(frozen=True, kw_only=True)
class SeedsComparison:
    """What `compare_seeds` found; prints in rich."""

    sides: tuple[tuple[str, ...], tuple[str, ...]]
    """Paths, pair by pair."""
    seeds: tuple[int, ...] | None
    """`run.seed` of each pair; None where the evaluations are of no run, and were paired as they stood."""
    tolerance: float
    tasks: tuple[SeedsTask, ...]
    warnings: tuple[str, ...]

    @property
    def n(self) -> int:
        """Seeds of each side."""
        return len(self.sides[0])

    @property
    def regressed(self) -> tuple[str, ...]:
        """Tasks whose primary metric is worse by more than the tolerance, with an interval beyond 0."""
        return tuple(x.task for x in self.tasks if x.regressed)

    def lines(self) -> list[str]:
        """The verdict, and what the numbers are."""
        of = "" if self.seeds is None else f" ({', '.join(map(str, self.seeds))})"
        verdict = f"no regression: no primary metric is worse by more than {self.tolerance:g} with an interval over seeds that excludes 0"
        how = "in the order given" if self.seeds is None else "by seed"
        return [
            f"regressed: {', '.join(self.regressed)}" if self.regressed else verdict,
            f"95% intervals: Student's t over {self.n} seeds{of}, paired {how} and by question; the second is over seeds and "
            "questions, for questions that were not asked",
        ]

    def cells(self) -> Cells:
        """A row per task."""
        rows = [["task", "n", "metric", "A", "B", "B - A", "over seeds and questions", "p", "p (Holm)", "by seed", "verdict"]]
        for x in self.tasks:
            digits = 1 if x.metric in COUNTS else 3
            by_seed = " ".join(f"{value:+.{digits}f}" for value in x.by_seed)
            rows.append(
                [
                    *(x.task, str(x.questions), LABELS.get(x.metric, x.metric), figure(x.metric, x.a), figure(x.metric, x.b)),
                    f"{x.difference:+.{digits}f} [{x.low:+.{digits}f}, {x.high:+.{digits}f}]",
                    f"[{x.wide_low:+.{digits}f}, {x.wide_high:+.{digits}f}]",
                    *(p_text(x.p), p_text(x.p_holm), by_seed, "regressed" if x.regressed else ""),
                ]
            )
        return rows

    def told(self) -> list[str]:
        """What the terminal shows: a few short lines for each task, which a table of as many columns would break."""
        out = [f"{name}: {' '.join(paths)}" for name, paths in zip("AB", self.sides, strict=True)]
        header, *rows = self.cells()
        for row in rows:
            x = dict(zip(header, row, strict=True))
            out.append(f"{x['task']}: {x['metric']}, {self.n} seeds x {x['n']} questions{', regressed' if x['verdict'] else ''}")
            out += [f"  A {x['A']}, B {x['B']}; by seed {x['by seed']}", f"  B - A {x['B - A']}, p {x['p']}, {x['p (Holm)']} by Holm"]
            out.append(f"  over seeds and questions {x['over seeds and questions']}")
        return [*out, *self.lines()]

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        warnings = [Text(visible(f"warning: {text}"), style="yellow") for text in self.warnings]
        return Group(*warnings, *(Text(visible(line)) for line in self.told()))

    def markdown(self) -> str:
        """The same as Markdown."""
        out = ["# Two methods over seeds\n"]
        out += ["Warnings:\n\n" + "".join(f"- {visible(text)}\n" for text in self.warnings)] if self.warnings else []
        out.append("".join(f"- {name}: {visible(', '.join(paths))}\n" for name, paths in zip("AB", self.sides, strict=True)))
        return "\n".join([*out, markdown(self.cells()), "".join(f"- {visible(line)}\n" for line in self.lines())])

    def json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            **{
                "sides": [list(side) for side in self.sides],
                "seeds": None if self.seeds is None else list(self.seeds),
                "vlmrl": __version__,
            },
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
        first, second: runs (of which the last evaluation is meant), folders of `vlmrl eval`, or files of records. They are paired by the
            `run.seed` of their runs; if one is of no run, in the order given.
        tolerance: a primary metric may be worse by so much, in its own unit.
        force: compare what is not comparable, and say so in `warnings`.

    Raises:
        ConfigError: a side has one evaluation, a seed twice, or one that the other side lacks; or a run has no evaluation.
        Incomparable: two of a pair were not asked the same in the same way.
        StorageError: a file is missing or damaged.
    """
    pairs, seeds = paired(first, second)
    done = [compare_folders(a, b, tolerance=tolerance, force=force) for a, b in pairs]
    warnings = [] if seeds is not None else ["not all evaluations are of runs, so nothing says their seeds: paired in the order given"]
    warnings += dict.fromkeys(text for one in done for text in one.warnings)
    common = [x.task for x in done[0].tasks if all(x.task in {y.task for y in other.tasks} for other in done)]
    lost = sorted({x.task for one in done for x in one.tasks} - set(common))
    warnings += [f"tasks that some seeds lack are left out: {', '.join(lost)}"] if lost else []
    tasks = [_task(name, pairs, done, tolerance) for name in common if _primary(done, name) is not None]
    if not tasks:
        raise ConfigError("no task with a primary metric is in the evaluations of all seeds")
    return SeedsComparison(
        sides=(tuple(str(a) for a, _ in pairs), tuple(str(b) for _, b in pairs)),
        seeds=seeds,
        tolerance=tolerance,
        tasks=_corrected(tasks),
        warnings=tuple(warnings),
    )


def paired(first: Sequence[Path], second: Sequence[Path]) -> tuple[list[tuple[Path, Path]], tuple[int, ...] | None]:
    """The evaluations pair by pair, and the seeds of the pairs; without these as they stand.

    Raises:
        ConfigError: as `compare_seeds`.
    """
    if len(first) < 2 or len(second) < 2:
        raise ConfigError(
            f"{len(first)} and {len(second)} evaluations: Student's t over seeds needs two of each side, and shows little below 3"
        )
    sides = [[(_seed(path), path) for path in side] for side in (first, second)]
    if any(seed is None for side in sides for seed, _ in side):
        if len(first) != len(second):
            raise ConfigError(f"{len(first)} and {len(second)} evaluations; of each side one per seed is needed, in the same order")
        return list(zip(first, second, strict=True)), None
    for side in sides:
        known = [seed for seed, _ in side]
        twice = next((path for place, (seed, path) in enumerate(side) if seed in known[:place]), None)
        if twice is not None:
            raise ConfigError(f"{twice}: another run of its side has the same run.seed; of each side one run per seed")
    a, b = ({seed: path for seed, path in side if seed is not None} for side in sides)
    alone = [f"{path} (seed {seed})" for x, y in ((a, b), (b, a)) for seed, path in x.items() if seed not in y]
    if alone:
        raise ConfigError(f"{', '.join(alone)}: the other side has no run with this seed; pairs share it (vlmrl train --seeds)")
    return [(a[seed], b[seed]) for seed in sorted(a)], tuple(sorted(a))


def _seed(path: Path) -> int | None:
    """`run.seed` of the run that an evaluation is of: the run, its folder `eval`, or a file in that; None for any other."""
    run = next((folder for folder in (path, *path.absolute().parents[:3]) if (folder / "config.yaml").is_file()), None)
    return None if run is None else seed_of(read_run(run))


def _primary(done: Sequence[FolderComparison], task: str) -> str | None:
    names = {x.primary for one in done for x in one.tasks if x.task == task}
    return names.pop() if len(names) == 1 else None


def _task(name: str, pairs: Sequence[tuple[Path, Path]], done: Sequence[FolderComparison], tolerance: float) -> SeedsTask:
    """One task; `p_holm` is filled in when all tasks are done."""
    metric = str(_primary(done, name))
    gaps = [next(x.gaps[metric] for x in one.tasks if x.task == name) for one in done]
    values = [tuple(_values(path, name, metric) for path in pair) for pair in pairs]
    shared = [question for question in values[0][0] if all(question in side for pair in values for side in pair)]
    by_question = {q: (fmean(b[q][0] - a[q][0] for a, b in values), values[0][0][q][1]) for q in shared}
    by_seed = [gap.difference for gap in gaps]
    resolution = 0.0 if metric in UNBOUNDED else 1 / max(gap.n for gap in gaps)
    mean, half, wide, p = over_seeds(by_seed, by_question, resolution)
    loss = mean if metric in LOWER_IS_BETTER else -mean
    return SeedsTask(
        task=name,
        metric=metric,
        questions=len(shared),
        a=fmean(gap.a for gap in gaps),
        b=fmean(gap.b for gap in gaps),
        by_seed=tuple(by_seed),
        difference=mean,
        low=mean - half,
        high=mean + half,
        wide_low=mean - wide,
        wide_high=mean + wide,
        p=p,
        p_holm=p,
        regressed=loss > tolerance and loss > half and p < ALPHA,
    )


def _values(path: Path, task: str, metric: str) -> Values:
    """Values of a metric by question. A file is the task of its own name or of its records, as `compare_folders` has it."""
    at = evaluation_at(path)
    side = load_evaluation(at)
    if task not in side.records:
        side = load_evaluation(at, task=task)
    return metric_values(by_sample(side.records[task])).get(metric, {})


def over_seeds(
    by_seed: Sequence[float], by_question: Mapping[str, tuple[float, str]], resolution: float
) -> tuple[float, float, float, float]:
    """Mean difference, half width of its 95% interval over seeds, the same over seeds and questions, and the p value over seeds.

    Args:
        by_seed: difference of each seed, at least two.
        by_question: mean difference over the seeds, and the cluster of the question.
        resolution: what one answer more or less changes. The deviation over seeds is taken to be at least so large: that all seeds agree to
            the last answer does not mean that nothing is left to know.
    """
    from scipy import stats

    mean, n = fmean(by_seed), len(by_seed)
    error = max(stdev(by_seed), resolution) / math.sqrt(n)
    quantile = float(stats.t.ppf(1 - ALPHA / 2, n - 1))
    clusters: dict[str, float] = {}
    centre = fmean(value for value, _ in by_question.values()) if by_question else 0.0
    for value, cluster in by_question.values():
        clusters[cluster] = clusters.get(cluster, 0.0) + value - centre
    c = len(clusters)
    of_questions = c / (c - 1) * sum(total**2 for total in clusters.values()) / len(by_question) ** 2 if c > 1 else 0.0
    p = 1.0 if error == 0 and mean == 0 else 0.0 if error == 0 else 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return mean, quantile * error, quantile * math.sqrt(error**2 + of_questions), p


def _corrected(tasks: Sequence[SeedsTask]) -> tuple[SeedsTask, ...]:
    return tuple(replace(x, p_holm=p) for x, p in zip(tasks, holm([x.p for x in tasks]), strict=True))
