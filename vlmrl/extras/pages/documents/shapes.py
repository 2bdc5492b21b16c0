"""Parts of documents: estimates, tables and words for stages, as JSON values that a page shows as they are.

Texts of runs have their invisible characters spelled out here (`table.visible`); a page shows them as text and never as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.evals.score.paired import Gap
from vlmrl.evals.score.summary import Interval
from vlmrl.evals.score.table import COUNTS, difference_text, figure, p_text, visible

WORDS = {"sft": "SFT", "rl": "RL", "grpo": "RL", "dpo": "DPO", "pretrain": "pretraining", "pretraining": "pretraining"}
"""Names of stages as sentences say them; others as they are."""
ALPHA = 0.05

Doc = dict[str, Any]


def stage_words(name: str) -> str:
    """`SFT` for `sft`."""
    return WORDS.get(name.lower(), visible(name))


def when(name: str) -> str:
    """The time of an evaluation: `before training`, `after SFT`, `at step 40 of RL`."""
    if name == "base":
        return "before training"
    stage, _, step = name.partition("@")
    return f"at step {visible(step)} of {stage_words(stage)}" if step else f"after {stage_words(name)}"


def estimate(metric: str, x: Interval | None) -> Doc:
    """A mean with its interval; without one where nothing is known of its width."""
    if x is None:
        return {"mean": None, "low": None, "high": None, "text": "-", "interval": ""}
    low, high = width(x.low, x.high)
    return {
        "mean": x.mean,
        "low": low,
        "high": high,
        "text": figure(metric, x.mean),
        "interval": "" if low is None or high is None else f"[{figure(metric, low)}, {figure(metric, high)}]",
    }


def width(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The ends of an interval, or none: one that is missing, or has no width, is no interval."""
    return (None, None) if low is None or high is None or low == high else (low, high)


def sign(gap: Gap) -> int:
    """1 where the second side is higher beyond doubt, -1 where it is lower, else 0."""
    low, high = width(gap.low, gap.high)
    if gap.difference == 0 or gap.p >= ALPHA or (low is not None and high is not None and low <= 0 <= high):
        return 0
    return 1 if gap.difference > 0 else -1


def change_text(metric: str, gap: Gap) -> str:
    """`+0.120 [+0.080, +0.160]`, the difference alone where it has no interval."""
    if width(gap.low, gap.high)[0] is None:
        return f"{gap.difference:+.{1 if metric in COUNTS else 3}f}"
    return difference_text(metric, gap)


def cell(text: str, small: str = "", *, dim: bool = False, kind: str | None = None) -> Doc:
    """A cell of a table: its text, what stands smaller below, whether it says nothing new, and whether it is good or bad news."""
    return {"text": visible(text), "small": visible(small), "dim": dim, "kind": kind}


def mean_cell(metric: str, x: Interval | None) -> Doc:
    """A mean with its interval below; dimmed where it has none."""
    shown = estimate(metric, x)
    return cell(shown["text"], shown["interval"], dim=not shown["interval"])


def gap_cell(metric: str, gap: Gap | None, *, lower_is_better: bool = False) -> Doc:
    """A difference with its interval and p value; better or worse where it is beyond doubt."""
    if gap is None:
        return cell("-", dim=True)
    if gap.difference == 0 and width(gap.low, gap.high)[0] is None:
        return cell("same", dim=True)
    mean, _, interval = change_text(metric, gap).partition(" ")
    way = sign(gap) * (-1 if lower_is_better else 1)
    kind = {1: "better", -1: "worse"}.get(way)
    return cell(mean, f"{interval} p {p_text(gap.p)}".strip(), dim=way == 0, kind=kind)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str | Mapping[str, Any]]], note: str = "") -> Doc:
    """A table; cells are texts or `cell`."""
    shown = [[visible(one) if isinstance(one, str) else one for one in row] for row in rows]
    return {"title": visible(title), "note": visible(note), "header": [visible(name) for name in header], "rows": shown}
