"""What is measured on an answered question, by the type of its answer, and what of it applies to a set of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vlmrl.evals.score.gui_scores import PARTS, RULES
from vlmrl.evals.score.records import Record


def _score(name: str) -> Callable[[Record], float | None]:
    return lambda r: r.scores.get(name)


def _at_least(name: str, threshold: float) -> Callable[[Record], float | None]:
    return lambda r: None if name not in r.scores else float(r.scores[name] >= threshold)


GUI_RULES = tuple(f"{part}_{rule}" for rule in RULES for part in PARTS)
"""`step_os_atlas` and so on: a step by the rules of published evaluations."""

METRICS: dict[str, Callable[[Record], float | None]] = {
    "score": lambda r: r.scores.get(MAIN.get(r.answer_type, "")),
    "miou": _score("tiou"),
    "r1@0.3": _at_least("tiou", 0.3),
    "r1@0.5": _at_least("tiou", 0.5),
    "r1@0.7": _at_least("tiou", 0.7),
    "moment_map": _score("moment_map"),
    "box_iou": _score("iou"),
    "box_r@0.5": _at_least("iou", 0.5),
    "exact": _score("exact"),
    "relative_accuracy": _score("relative_accuracy"),
    "anls": _score("anls"),
    "word_accuracy": _score("word_accuracy"),
    "relaxed": _score("relaxed"),
    "contained": _score("contained"),
    "step_success": _score("step"),
    "action_type": _score("action_type"),
    "action_arguments": _score("action_arguments"),
    **{name: _score(name) for name in GUI_RULES},
    "point": _score("point"),
    "highlight": _score("highlight"),
    "highlight_f2": _score("highlight_f2"),
    "highlight_hit1": _score("highlight_hit1"),
    "highlight_map": _score("highlight_map"),
    "track_iou": _score("track_iou"),
    "tube_iou": _score("tube_iou"),
    "segmentation": _score("segmentation"),
    "consistency": _score("consistency"),
    "grounding": _score("grounding"),
    "judged_consistency": _score("judged_consistency"),
    "judged_faithful": lambda r: faithful(r),
    "judged_grounding": _score("judged_grounding"),
    "judged_spatial": _score("judged_spatial"),
    "parse_rate": lambda r: float(r.status == "ok"),
    "format_rate": lambda r: None if r.format_ok is None else float(r.format_ok),
    "think_rate": lambda r: float(r.think.has),
    "tokens": lambda r: None if r.n_out is None else float(r.n_out),
    "truncation_rate": lambda r: None if r.finish is None else float(r.finish == "length" or r.unclosed),
}
"""Name -> its value for one record, or None where it does not apply. A metric is the mean over the records to which it applies; what
cannot be read counts 0. Consistency applies where the answer is right and the row says what to check a thought against."""

LABELS = {
    "score": "score",
    "miou": "mIoU",
    "r1@0.3": "R1@0.3",
    "r1@0.5": "R1@0.5",
    "r1@0.7": "R1@0.7",
    "moment_map": "moment mAP",
    "box_iou": "box IoU",
    "box_r@0.5": "box R@0.5",
    "exact": "exact",
    "relative_accuracy": "relative accuracy",
    "anls": "ANLS",
    "word_accuracy": "1 - WER",
    "relaxed": "relaxed accuracy",
    "contained": "answer contained",
    "step_success": "step success",
    "action_type": "action type",
    "action_arguments": "arguments",
    **{name: name.replace("_", " ", 1) for name in GUI_RULES},
    "point": "pointing",
    "highlight": "highlights",
    "highlight_f2": "highlight F2",
    "highlight_hit1": "HIT@1",
    "highlight_map": "highlight mAP",
    "track_iou": "track IoU",
    "tube_iou": "tube IoU",
    "segmentation": "box and points",
    "consistency": "consistent thought",
    "grounding": "grounded thought",
    "judged_consistency": "consistent (judge)",
    "judged_faithful": "right and consistent (judge)",
    "judged_grounding": "grounded (judge)",
    "judged_spatial": "boxes of thought (judge)",
    "parse_rate": "readable",
    "format_rate": "right form",
    "think_rate": "with thought",
    "tokens": "tokens",
    "truncation_rate": "cut off",
    "all_right": "all of group",
    "first_right": "first of group",
    "macro": "macro mean",
    "maj@n": "maj@n",
    "oracle_best": "best of n (oracle)",
    **{f"pass@{k}": f"pass@{k}" for k in (1, 2, 4, 8, 16)},
    **{f"pass^{k}": f"pass^{k}" for k in (2, 4, 8, 16)},
}
"""Of all metrics, those of `evals.score.values` at the end."""

COMMON = ("parse_rate", "format_rate", "think_rate", "tokens", "truncation_rate")
"""Metrics of every answer type."""
OF_TYPE: dict[str, tuple[str, ...]] = {
    "time_span": ("miou", "r1@0.3", "r1@0.5", "r1@0.7"),
    "bbox": ("box_iou", "box_r@0.5"),
    "number": ("exact", "relative_accuracy"),
    "regression": ("relative_accuracy", "exact"),
    "choice": ("exact",),
    "math": ("exact",),
    "short_text": ("anls", "word_accuracy", "relaxed", "contained"),
    "exact_text": ("exact", "consistency", "grounding"),
    "action": ("step_success", "action_type", "action_arguments"),
    "point": ("point",),
    "highlight": ("highlight", "highlight_f2", "highlight_hit1", "highlight_map"),
    "tracking": ("track_iou",),
    "spatio_temporal": ("tube_iou", "miou", "r1@0.3", "r1@0.5", "r1@0.7"),
    "segmentation": ("segmentation", "box_iou", "box_r@0.5"),
}
"""Answer type -> its own metrics, the one that stands for it first."""
MAIN = {
    **{"time_span": "tiou", "bbox": "iou", "number": "exact", "choice": "exact", "exact_text": "exact", "action": "step"},
    **{"math": "exact", "short_text": "anls", "regression": "relative_accuracy"},
    **{"point": "point", "highlight": "highlight", "tracking": "track_iou", "spatio_temporal": "tube_iou", "segmentation": "segmentation"},
}
"""Answer type -> the name in `Record.scores` that says how good the answer is."""


RIGHT_AT = {"time_span": 0.5, "bbox": 0.5, "tracking": 0.5, "spatio_temporal": 0.5, "segmentation": 0.5}
"""Answer type -> main score from which an answer counts as right, where that is an overlap; 1 for all others."""


def is_right(record: Record) -> bool:
    """Whether an answer counts as right: its main score is 1, of an overlap at least 0.5 (`RIGHT_AT`)."""
    return main_score(record) >= RIGHT_AT.get(record.answer_type, 1.0)


def faithful(record: Record) -> float | None:
    """Faithful accuracy of Faithful GRPO (arXiv:2604.08476): right, and the judge finds that the thought leads there."""
    consistent = record.scores.get("judged_consistency")
    return None if consistent is None else float(is_right(record) and consistent >= 1)


def main_score(record: Record) -> float:
    """How good an answer is, in [0, 1], whatever its type."""
    return record.scores[MAIN[record.answer_type]]


def metrics_of(*answer_types: str) -> tuple[str, ...]:
    """Metrics of rows of these answer types, in the order of `METRICS`; `score` stands for all where there are several."""
    wanted = {*COMMON, *(("score",) if len(answer_types) > 1 else ()), *(name for kind in answer_types for name in OF_TYPE[kind])}
    return tuple(name for name in METRICS if name in wanted)


def allowed_metrics(*answer_types: str) -> tuple[str, ...]:
    """What a task of these answer types may name: its metrics, `score`, and those of sets of records."""
    wanted = {"score", *metrics_of(*answer_types), *(name for name in METRICS if name.startswith("judged_"))}
    wanted |= set(GUI_RULES) if "action" in answer_types else set()
    wanted |= {"moment_map"} if "time_span" in answer_types else set()
    return tuple(name for name in LABELS if name in wanted or name not in METRICS)


def present(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The metrics that occur in at least one of the groups of names, in the order of `LABELS`; those of time spans where there are no
    names at all. `score` is not among them, since it repeats another for every single answer type."""
    seen = {name for group in groups for name in group} - {"score"}
    return tuple(name for name in LABELS if name in seen) if seen else metrics_of("time_span")


def parts_of(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by task, and by difficulty and category where rows state them: `task=<name>`, `difficulty=<name>`, `category=<name>` ->
    records, in the order of names.

    A property that all records share makes no parts.
    """
    out: dict[str, list[Record]] = {}
    rows = list(records)
    for label, of in (("task", lambda r: r.task), ("difficulty", lambda r: r.difficulty), ("category", lambda r: r.category)):
        values = sorted({of(r) for r in rows} - {None})
        if len(values) > 1:
            out |= {f"{label}={value}": [r for r in rows if of(r) == value] for value in values}
    return out
