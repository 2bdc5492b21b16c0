"""Parts of documents: estimates, tables, reports and words for stages, as JSON values that a page shows as they are.

A page shows texts as text and never as HTML, and spells out their invisible characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.evals.score.paired import LOWER_IS_BETTER, Gap
from vlmrl.evals.score.summary import Interval
from vlmrl.evals.score.table import difference_text, interval_text, p_text

WORDS = {"sft": "SFT", "rl": "RL", "grpo": "RL", "dpo": "DPO", "pretrain": "pretraining", "pretraining": "pretraining"}
"""Names of stages as sentences say them; others as they are."""

Doc = dict[str, Any]


def stage_words(name: str) -> str:
    """`SFT` for `sft`."""
    return WORDS.get(name.lower(), name)


def when(name: str) -> str:
    """The time of an evaluation: `before training`, `after SFT`, `at step 40 of RL`."""
    if name == "base":
        return "before training"
    stage, _, step = name.partition("@")
    return f"at step {step} of {stage_words(stage)}" if step else f"after {stage_words(name)}"


def capital(text: str) -> str:
    """With a capital letter at the beginning of a sentence; `mIoU` stays."""
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]


def estimate(metric: str, x: Interval | None) -> Doc:
    """A mean with its interval; without one, why there is none."""
    if x is None:
        return {"mean": None, "low": None, "high": None, "text": "-", "interval": "", "why": ""}
    text, _, interval = interval_text(metric, x).partition(" ")
    return {"mean": x.mean, "low": x.low, "high": x.high, "text": text, "interval": interval if x.low is not None else "", "why": x.why}


def cell(text: str, small: str = "", *, dim: bool = False, kind: str | None = None, href: str | None = None) -> Doc:
    """A cell of a table: its text, what stands smaller below, whether it says nothing new, whether it is good or bad news, and where it
    leads."""
    return {"text": text, "small": small, "dim": dim, "kind": kind, "href": href}


def mean_cell(metric: str, x: Interval | None) -> Doc:
    """A mean with its interval below, or why it has none; dimmed then."""
    shown = estimate(metric, x)
    return cell(shown["text"], shown["interval"] or f"({shown['why']})" * bool(shown["why"]), dim=not shown["interval"])


def gap_cell(metric: str, gap: Gap) -> Doc:
    """A difference with its interval and p value; better or worse where it is beyond doubt."""
    if not gap.differ:
        return cell("same", dim=True)
    mean, _, interval = difference_text(metric, gap).partition(" ")
    way = gap.sign * (-1 if metric in LOWER_IS_BETTER else 1)
    return cell(mean, f"{interval} p {p_text(gap.p)}", dim=way == 0, kind={1: "better", -1: "worse"}.get(way))


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str | Mapping[str, Any]]], note: str = "") -> Doc:
    """A table; cells are texts or `cell`."""
    return {"title": title, "note": note, "header": list(header), "rows": [list(row) for row in rows]}


def card(title: str, rows: Sequence[Mapping[str, Any]], *, text: str = "", note: str = "", wide: bool = False) -> Doc:
    """Estimates under each other on one axis: `estimate` with a `name`."""
    return {"title": title, "rows": list(rows), "text": text, "note": note, "wide": wide}


def report(name: str, **parts: Any) -> Doc:
    """All that is said of a run, an evaluation, a comparison or a study, in the order in which it is shown.

    Args:
        parts: `about` below the name, `said` (sentences), `warnings`, `cards`, `unmoved`, `next`, `tables`, `facts`, `config`,
            and `questions`, the address of a table.
    """
    lists = {key: [] for key in ("said", "warnings", "cards", "unmoved", "next", "tables", "facts")}
    return {"name": name, "about": "", **lists, "config": "", "questions": None, **parts}
