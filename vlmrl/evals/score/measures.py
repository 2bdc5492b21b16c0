"""Metrics of a record: their values, labels, and which apply to a set of records.

`METRICS` holds the metrics of one record by name: those of answer types (`vlmrl.answers`), those below, and those of plug-ins
(`METRICS.add`). A metric is the mean over the records to which it applies; what cannot be read counts 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from vlmrl.answers.base import ANSWER_TYPES, METRICS, Metric, scored
from vlmrl.evals.score.records import Record

for _metric in (
    Metric("judged_consistency", "consistent (judge)", scored("judged_consistency")),
    Metric("judged_faithful", "right and consistent (judge)", lambda r: faithful(r)),  # looked up when called: it is defined below
    Metric("judged_grounding", "grounded (judge)", scored("judged_grounding")),
    Metric("judged_spatial", "boxes of thought (judge)", scored("judged_spatial")),
    Metric("steps_right", "steps right", scored("steps_right")),
    Metric("steps_all_right", "all steps right", scored("steps_all_right")),
    Metric("parse_rate", "readable", lambda r: float(r.status == "ok"), common=True),
    Metric("format_rate", "right form", lambda r: None if r.format_ok is None else float(r.format_ok), common=True),
    Metric("think_rate", "with thought", lambda r: float(r.think.has), common=True),
    Metric("tokens", "tokens", lambda r: None if r.n_out is None else float(r.n_out), common=True),
    Metric("truncation_rate", "cut off", lambda r: None if r.finish is None else float(r.finish == "length" or r.unclosed), common=True),
):
    METRICS.add(_metric.name, _metric)

JUDGED = "judged_"
"""With this the scores of a record begin that a judge gave."""
COMMON = tuple(metric.name for metric in METRICS.values() if metric.common)
"""Metrics of every answer type."""
_GROUPED = {
    "all_right": "all of group",
    "first_right": "first of group",
    "macro": "mean of categories",
    "maj@n": "maj@n",
    "oracle_best": "best of n (oracle)",
    **{f"pass@{k}": f"pass@{k}" for k in (1, 2, 4, 8, 16)},
    **{f"pass^{k}": f"pass^{k}" for k in (2, 4, 8, 16)},
}


class _Labels(Mapping[str, str]):
    """Metric -> its label in tables, in the order of columns: of answers, of every record, and those of `score.values` at the end."""

    def __getitem__(self, name: str) -> str:
        return METRICS[name].label if name in METRICS else _GROUPED[name]

    def __iter__(self) -> Iterator[str]:
        yield from sorted(METRICS, key=lambda name: METRICS[name].common)
        yield from _GROUPED

    def __len__(self) -> int:
        return len(METRICS) + len(_GROUPED)


# a view and not a dict: plug-ins add metrics after this module is loaded
LABELS: Mapping[str, str] = _Labels()


def is_right(record: Record) -> bool:
    """Check whether an answer counts as right: its main score is 1, of an overlap at least 0.5 (`AnswerType.right_at`)."""
    return main_score(record) >= ANSWER_TYPES[record.answer_type].right_at


def faithful(record: Record) -> float | None:
    """Compute faithful accuracy of Faithful GRPO (arXiv:2604.08476): right, and the judge finds that the thought leads there."""
    consistent = record.scores.get("judged_consistency")
    return None if consistent is None else float(is_right(record) and consistent >= 1)


def main_score(record: Record) -> float:
    """Read how good an answer is, in [0, 1], whatever its type."""
    return record.scores[ANSWER_TYPES[record.answer_type].main]


def metrics_of(*answer_types: str) -> tuple[str, ...]:
    """List the metrics of rows of these answer types, in the order of columns; `score` stands for all where there are several."""
    own = {metric.name for kind in answer_types for metric in ANSWER_TYPES[kind].metrics}
    wanted = {*COMMON, *own, *(("score",) if len(answer_types) > 1 else ())}
    return tuple(name for name in LABELS if name in wanted)


def allowed_metrics(*answer_types: str) -> tuple[str, ...]:
    """List what a task of these answer types may name: its metrics, `score`, those of no answer type, and those of sets of records."""
    kinds = [ANSWER_TYPES[kind] for kind in answer_types]
    own = {metric.name for kind in kinds for metric in (*kind.metrics, *kind.more_metrics)}
    others = {metric.name for kind in ANSWER_TYPES.values() for metric in (*kind.metrics, *kind.more_metrics)} - own
    return tuple(name for name in LABELS if name not in others)


def applicable(answer_types: Collection[str]) -> tuple[str, ...]:
    """List the metrics that can apply to records of these answer types; all where one is not ours, as in imported results."""
    return allowed_metrics(*answer_types) if all(kind in ANSWER_TYPES for kind in answer_types) else tuple(LABELS)


def present(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """List the metrics that occur in at least one of the groups of names, in the order of `LABELS`; those of every record where there are
    no names at all. `score` is not among them, since it repeats another for every single answer type."""
    seen = {name for group in groups for name in group} - {"score"}
    return tuple(name for name in LABELS if name in seen) if seen else COMMON


def parts_of(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Part records by task, and by difficulty and category where rows state them: `task=<name>`, `difficulty=<name>`, `category=<name>` ->
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
