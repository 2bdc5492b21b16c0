"""`vlmrl compare EVALUATION --published`: a model's figures beside those that papers print for the same tasks (`docs/compare.md`).

Nothing is tested and no difference is taken: a printed figure has no questions to pair with, its harness is another one, and its unit is
the paper's. Each stands with its source and its harness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import __version__, fs
from vlmrl.errors import StorageError
from vlmrl.evals.score.evaluation import load_evaluation
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.runfiles import evaluation_at
from vlmrl.evals.score.summary import Interval, Summary, summarize
from vlmrl.evals.score.table import Cells, interval_text, markdown, visible

if TYPE_CHECKING:
    from rich.console import Group

SAME = {"miou": "miou", "r1@0.3": "r1@0.3", "r1@0.5": "r1@0.5", "r1@0.7": "r1@0.7", "map": "highlight_map", "hit@1": "highlight_hit1"}
"""A measure as papers write it, in lower case -> ours of the same definition. Any other stands beside the task's primary metric."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """One printed figure, and ours of the same task."""

    task: str
    n: int
    """Questions that were asked here."""
    official: int | None
    """Questions of the whole task, where that is known."""
    metric: str
    """Ours."""
    ours: Interval
    same: bool
    """Whether ours has the definition that the printed measure's name stands for."""
    model: str
    """Whose figure is printed."""
    measure: str
    """What was measured, in the words of the source."""
    value: float | None
    """As printed."""
    source: str
    harness: str


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """All printed figures of an evaluation's tasks; prints as a table in rich."""

    model: str
    path: str
    rows: tuple[Beside, ...]
    without: tuple[str, ...]
    """Tasks for which nothing printed is known."""
    unmeasured: tuple[str, ...]
    """Tasks with a printed figure, whose records have neither its measure nor the task's primary metric."""

    def cells(self) -> Cells:
        """Make a row per printed figure."""
        out = [["task", "questions", "our metric", self.model, "printed by", "their measure", "printed"]]
        for x in self.rows:
            n = str(x.n) if x.official in (None, x.n) else f"{x.n} of {x.official}"
            metric = LABELS.get(x.metric, x.metric) + ("" if x.same else " *")
            value = "-" if x.value is None else f"{x.value:g}"
            out.append([x.task, n, metric, interval_text(x.metric, x.ours), x.model, x.measure, value])
        return out

    def lines(self) -> list[str]:
        """Say how to read the table: units, measures that are not the same, sources with their harness."""
        out = ["printed figures are the authors' claims, in their unit (most in percent); nothing here says that a difference is real"]
        if any(not x.same for x in self.rows):
            out.append("* the task's primary metric: which of ours is theirs is not known")
        if any(x.official not in (None, x.n) for x in self.rows):
            out.append("a part of a task's questions has another mean than the whole")
        sources = dict.fromkeys((x.source, x.harness) for x in self.rows)
        out += [f"{source}: harness: {harness}" for source, harness in sources]
        if self.unmeasured:
            out.append(f"figures are printed, but no answer was scored by the task's metric, for {', '.join(self.unmeasured)}")
        return out + ([f"no printed figure is known for {', '.join(self.without)}"] if self.without else [])

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        from vlmrl.evals.score.terminal import table

        return Group(table(self.cells(), title="beside printed figures"), *(Text(visible(line)) for line in self.lines()))

    def markdown(self) -> str:
        lines = "".join(f"- {visible(line)}\n" for line in self.lines())
        return f"# {visible(self.model)} beside printed figures\n\n{markdown(self.cells())}\n{lines}"

    def json(self) -> dict[str, Any]:
        """Collect everything, as JSON values."""
        rows = [asdict(row) for row in self.rows]
        return {
            "model": self.model,
            "path": self.path,
            "vlmrl": __version__,
            "rows": rows,
            "without": list(self.without),
            "unmeasured": list(self.unmeasured),
        }

    def write(self, folder: Path) -> None:
        """Write `published.md` and `published.json`.

        Raises:
            StorageError: they cannot be written.
        """
        fs.mkdir(folder)
        fs.write_text(folder / "published.json", json.dumps(self.json(), indent=1, sort_keys=True, allow_nan=False) + "\n")
        fs.write_text(folder / "published.md", self.markdown())


def beside_published(path: Path, *, seed: int = 0) -> PublishedTable:
    """Put an evaluation beside what its tasks' definitions quote.

    Args:
        path: folder that `vlmrl eval` wrote.
        seed: of the resampling for our intervals.

    Raises:
        StorageError: `path` is no such folder, is damaged, or no figure of its tasks has one of ours to stand beside.
    """
    found = load_evaluation(evaluation_at(path))
    rows: list[Beside] = []
    without: list[str] = []
    unmeasured: list[str] = []
    for name, records in found.records.items():
        definition = found.tasks.get(name, {})
        beside = _of_task(name, definition, records, seed) if records else []
        rows += beside
        if not beside:
            (unmeasured if definition.get("published") else without).append(name)
    if not rows:
        why = f"none of its tasks ({', '.join(without)}) quotes a printed figure" if without else ""
        lacks = f"no answer of {', '.join(unmeasured)} was scored by the task's metric" if unmeasured else ""
        raise StorageError(f"{path}: {'; '.join(filter(None, (why, lacks)))}; compare it with another evaluation")
    return PublishedTable(model=found.model, path=str(path), rows=tuple(rows), without=tuple(without), unmeasured=tuple(unmeasured))


def _of_task(name: str, definition: Mapping[str, Any], records: Sequence[Record], seed: int) -> list[Beside]:
    quoted: Sequence[Mapping[str, Any]] = definition.get("published") or ()
    summary = summarize(records, seed, parts=False)
    out: list[Beside] = []
    for one in quoted:
        # a measure of the same name is compared with that one; for any other the task's primary metric stands beside it, marked
        metric, same = _ours(one["metric"], str(definition.get("primary") or "score"), summary)
        if metric is None:
            continue
        out.append(
            Beside(
                task=name,
                n=summary.n,
                official=definition.get("official_count"),
                metric=metric,
                ours=summary.metrics[metric],
                same=same,
                model=one["model"],
                measure=one["metric"],
                value=one["value"],
                source=one["source"],
                harness=one["harness"],
            )
        )
    return out


def _ours(measure: str, primary: str, summary: Summary) -> tuple[str | None, bool]:
    """(our metric for a printed measure, whether it is the same one); None where the records have neither."""
    named = SAME.get(measure.lower())
    if named is not None and named in summary.metrics:
        return named, True
    # papers say accuracy of many things; it is ours only where the task counts right answers and nothing else
    if measure == "accuracy" and "exact" in summary.metrics and primary == "exact":
        return "exact", True
    return (primary if primary in summary.metrics else None), False
