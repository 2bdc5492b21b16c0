"""Renders results as tables for the terminal (rich) and as Markdown. Models are rows; a cell is `mean [low, high]`, a 95% interval, or
`mean (why there is none)`.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vlmrl.evals.score.levels import METRICS as LEVEL_METRICS
from vlmrl.evals.score.levels import LevelTable
from vlmrl.evals.score.measures import COMMON, LABELS, present
from vlmrl.evals.score.paired import Comparison, Gap
from vlmrl.evals.score.summary import Interval, Summary

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

Pair = tuple[str, str]
"""Names of the two models of a comparison: before, after."""
COUNTS = ("tokens", "turns", "excess_turns")
"""Metrics that are not shares."""
UNBOUNDED = (*COUNTS, "return")
"""Metrics that a figure from 0 to 1 cannot show."""
Cells = list[list[str]]
"""A header and its rows."""


def figure(name: str, value: float) -> str:
    """Write a mean as text: three decimals, or one for counts."""
    return f"{value:.1f}" if name in COUNTS else f"{value:.3f}"


def interval_text(name: str, x: Interval) -> str:
    """Write `0.412 [0.380, 0.445]`, or `0.412 (no interval: 4 clusters)`."""
    if x.low is None or x.high is None:
        return f"{figure(name, x.mean)} ({x.why})"
    return f"{figure(name, x.mean)} [{figure(name, x.low)}, {figure(name, x.high)}]"


def difference_text(name: str, x: Gap) -> str:
    """Write `+0.120 [+0.080, +0.160]`, or `+0.120 (no interval: 4 clusters)`."""
    return f"{signed(name, x.difference)} {range_text(name, x.low, x.high, x.why)}"


def signed(name: str, value: float) -> str:
    """Write a difference: `+0.120`."""
    return f"{value:+.{1 if name in COUNTS else 3}f}"


def range_text(name: str, low: float | None, high: float | None, why: str) -> str:
    """Write the interval of a difference, or why there is none: `[+0.080, +0.160]`, `(no interval: 4 clusters)`."""
    return f"({why})" if low is None or high is None else f"[{signed(name, low)}, {signed(name, high)}]"


def p_text(p: float) -> str:
    """Write `0.031`, or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def summary_cells(summaries: Mapping[str, Summary], metrics: Sequence[str] | None = None) -> Cells:
    """Make cells of model, number of questions, metrics (by default those that apply to some model)."""
    columns = present(summary.metrics for summary in summaries.values()) if metrics is None else metrics
    rows = [["model", "n", *(LABELS[m] for m in columns)]]
    return rows + [[name, str(summary.n), *_metric_cells(summary, columns)] for name, summary in summaries.items()]


def part_cells(summaries: Mapping[str, Summary], metrics: Sequence[str] | None = None) -> Cells:
    """Make a row per task or difficulty and model; no rows where the questions have no parts."""
    parts = list(dict.fromkeys(part for summary in summaries.values() for part in summary.parts))
    shown = [(part, name, summary.parts[part]) for part in parts for name, summary in summaries.items() if part in summary.parts]
    columns = present(summary.metrics for _, _, summary in shown) if metrics is None else metrics
    rows = [["part", "model", "n", *(LABELS[m] for m in columns)]]
    return rows + [[part, name, str(summary.n), *_metric_cells(summary, columns)] for part, name, summary in shown]


def level_cells(x: LevelTable) -> Cells:
    """Make a row per category and per task and difficulty; of each stage the main score with its interval, means of other metrics."""
    labels = level_labels(x)
    rows = [["questions", "n", *(f"{stage}\n{label}" for stage in x.stages for label in labels)]]
    for row in x.rows:
        cells = [level_cell(m, row.stages.get(stage)) for stage in x.stages for m in LEVEL_METRICS]
        rows.append([row.name, str(row.n), *(f"{mean} {interval}".strip() for mean, interval in cells)])
    return rows


def level_labels(x: LevelTable) -> list[str]:
    """Name the columns of each stage; short, since there are many."""
    return [{"score": x.label, "think_rate": "thinks"}.get(m, LABELS[m]) for m in LEVEL_METRICS]


def level_cell(metric: str, summary: Summary | None) -> tuple[str, str]:
    """Write (mean, interval) as texts; an interval for the main score only."""
    found = None if summary is None else summary.metrics.get(metric)
    if found is None:
        return "-", ""
    mean, interval = interval_text(metric, found).split(" ", 1)
    return mean, interval if metric == "score" else ""


def _metric_cells(summary: Summary, metrics: Sequence[str]) -> list[str]:
    return [interval_text(m, summary.metrics[m]) if m in summary.metrics else "-" for m in metrics]


def comparison_cells(comparisons: Mapping[Pair, Comparison], metrics: Sequence[str] | None = None, *, parts: bool = False) -> Cells:
    """Make one row per pair and metric: difference with interval, p value and its test. Metrics that do not apply have no row.

    With `parts`, the tasks and difficulties of each pair follow it as rows of their own.
    """
    columns = present(comparison.gaps for comparison in comparisons.values()) if metrics is None else metrics
    rows = [["models", "n", "metric", "difference", "p", "test"]]
    for (before, after), comparison in comparisons.items():
        for name, x in [("", comparison), *(comparison.parts.items() if parts else ())]:
            label = f"{before} -> {after}{f' ({name})' if name else ''}"
            found = [(m, x.gaps[m]) for m in columns if m in x.gaps]
            rows += [[label, str(gap.n), LABELS[m], difference_text(m, gap), p_text(gap.p), gap.test] for m, gap in found]
    return rows


class Paragraphs:
    """Lines for the terminal, wrapped at its width between words alone: a word or a path that is longer stays whole. Prints in rich."""

    def __init__(self, lines: Iterable[str], style: str = ""):
        self.lines, self.style = list(lines), style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in self.lines:
            text = visible(line)
            indent = " " * (len(text) - len(text.lstrip()) + 2)
            # control characters are shown by now, and a line break within a name must not look like the end of a line
            parts = textwrap.wrap(text, options.max_width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
            for part in parts or [""]:
                yield Text(part, style=self.style, no_wrap=True, overflow="ignore")


def markdown(cells: Cells) -> str:
    """Render cells as a Markdown table."""
    # a bar would end the cell, a line break the row
    header, *rows = [[visible(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in cells]
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def visible(text: str) -> str:
    """Text in which control, direction and other invisible characters show as `\\u001b`; line breaks and tabs stay.

    Text of models and rows could otherwise rewrite what a terminal or a page shows.
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co") else f"\\u{ord(c):04x}" for c in text)


def headline(summaries: Iterable[Summary]) -> tuple[str, ...]:
    """Choose the metrics of the figure: the shares that depend on the type of the answers, without the mean over categories."""
    return tuple(m for m in present(summary.metrics for summary in summaries) if m not in (*COMMON, *UNBOUNDED, "macro"))
