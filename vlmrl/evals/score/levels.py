"""Rows of a table by how hard questions are: categories, then kinds of task by difficulty, easiest first, with every stage side by side.

It is for records of one answer type that is right or wrong as a whole and whose rows say how hard they are. Overlaps (temporal
grounding, boxes) have several metrics that matter and keep the listing by parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.evals.score.measures import main_score
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.values import is_scored

METRICS = ("score", "think_rate", "tokens")
"""Columns of each stage."""
WORDS = ("easy", "medium", "hard")
"""Labels that are in order though they are no numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelRow:
    """Some of the questions."""

    name: str
    n: int
    stages: Mapping[str, Summary]
    """Of these questions alone; stages that did not ask any of them are absent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelTable:
    """All rows."""

    label: str
    """What the main score is called: `accuracy` where answers are right or wrong."""
    stages: tuple[str, ...]
    rows: tuple[LevelRow, ...]


def level_table(records: Mapping[str, Sequence[Record]], seed: int) -> LevelTable | None:
    """Make the table of all stages; None where it does not apply (`has_levels`). `seed` decides the resampling."""
    names = whole_stages(records)
    # rows are those of all stages together: a stage that asked other questions gets its own rows
    union = [r for name in names for r in records[name]]
    if not has_levels(union):
        return None
    rows: list[LevelRow] = []
    for name, chosen in levels(union):
        parts = {stage: [r for r in records[stage] if r.sample_id in chosen] for stage in names}
        summaries = {stage: summarize(part, seed, parts=False) for stage, part in parts.items() if part}
        rows.append(LevelRow(name=name, n=len(chosen), stages=summaries))
    return LevelTable(label=score_label(union), stages=tuple(names), rows=tuple(rows))


def whole_stages(names: Iterable[str]) -> list[str]:
    """Leave out evaluations within a stage (`STAGE@STEP`) that was evaluated at its end as well."""
    known = list(names)
    return [name for name in known if "@" not in name or name.partition("@")[0] not in known]


def has_levels(records: Sequence[Record]) -> bool:
    """Check whether all are of one answer type that is no overlap, scored by us, and of several difficulties or categories that have an
    order."""
    types = {r.answer_type for r in records}
    if len(types) != 1 or not types <= ANSWER_TYPES.keys() or not all(is_scored(r) for r in records):
        return False
    return ANSWER_TYPES[next(iter(types))].right_at >= 1 and (len({r.difficulty for r in records} - {None}) > 1 or bool(ranked(records)))


def score_label(records: Iterable[Record]) -> str:
    """Call the main score `accuracy` where every answer is right or wrong, else `score`."""
    return "accuracy" if {main_score(r) for r in records} <= {0.0, 1.0} else "score"


def levels(records: Sequence[Record]) -> list[tuple[str, frozenset[str]]]:
    """List name and sample ids of each row: categories, then tasks and difficulties. Rows of equal questions are one, named after both.

    Returns:
        (name, sample ids) of each row.
    """
    named = ranked(records) or _values(records, "category")
    rows = [(c, frozenset(r.sample_id for r in records if r.category == c)) for c in named if len(named) > 1]
    kinds = {(r.task, r.difficulty) for r in records}
    # tasks in the order of their easiest questions, then each task's difficulties
    easiest = {task: min(order(d or "") for t, d in kinds if t == task) for task, _ in kinds}
    several = len(easiest) > 1
    for task, difficulty in sorted(kinds, key=lambda kind: (easiest[kind[0]], kind[0], order(kind[1] or ""))):
        words = (task if several else "difficulty", difficulty or ("" if several else "not given"))
        chosen = frozenset(r.sample_id for r in records if (r.task, r.difficulty) == (task, difficulty))
        rows.append((" ".join(word for word in words if word), chosen))
    # by the questions themselves: a category that is exactly one difficulty would be the same row twice
    out: dict[frozenset[str], list[str]] = {}
    for name, chosen in rows:
        out.setdefault(chosen, []).append(name)
    return [(f"{names[0]} ({', '.join(names[1:])})" if names[1:] else names[0], chosen) for chosen, names in out.items()]


def ranked(records: Sequence[Record]) -> list[str]:
    """Order the categories, easiest first; none where there are fewer than two, or where nothing says how hard they are.

    What says so: that they are numbers or `WORDS`, or that the difficulties of one all lie below those of the next.
    """
    names = _values(records, "category")
    if len(names) < 2 or all(_known(name) for name in names):
        return names if len(names) > 1 else []
    ranges: list[tuple[tuple[int, float, str], tuple[int, float, str], str]] = []
    for name in names:
        own = {r.difficulty for r in records if r.category == name}
        places = [order(value) for value in own if value is not None and _known(value)]
        if not places or len(places) < len(own):
            return []
        ranges.append((min(places), max(places), name))
    ranges.sort()
    # strictly apart: categories whose difficulties overlap have no order
    return [name for _, _, name in ranges] if all(a[1] < b[0] for a, b in pairwise(ranges)) else []


def order(value: str) -> tuple[int, float, str]:
    """Place a label: numbers by their size, then `WORDS`, then texts.

    Returns:
        Sort key.
    """
    number = _number(value)
    if number is not None:
        return 0, number, value
    return (1, WORDS.index(value.lower()), value) if value.lower() in WORDS else (2, 0.0, value)


def difficulties(records: Sequence[Record]) -> list[str]:
    """Order the difficulties, easiest first; none where there are fewer than two, or where one is neither a number nor of `WORDS`."""
    names = _values(records, "difficulty")
    return names if len(names) > 1 and all(_known(name) for name in names) else []


def _values(records: Sequence[Record], name: str) -> list[str]:
    return sorted({getattr(r, name) for r in records} - {None}, key=order)


def _known(value: str) -> bool:
    return _number(value) is not None or value.lower() in WORDS


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
