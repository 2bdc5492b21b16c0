"""Verdicts: what a judge answered, parsed and checked, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.extras.judges.transport import first_value

MAX_TEXT = 65536
"""Characters of a judge's reply that are looked at, from its end."""
CANDIDATES = 80
"""Opening braces that may be the verdict's, counted from the end: bounds the work, and the items of a rubric."""


class Unreadable(Exception):
    """A reply that is no verdict. `reason` is a short code; the judge is told the message and asked again."""

    def __init__(self, reason: str, message: str):
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """No verdict, after everything was tried."""

    reason: str
    detail: str


Verdict = dict[str, Any]
Check = Callable[[Mapping[str, Any]], Verdict]
"""What was read -> the fields of the verdict, and nothing else; raises `Unreadable`. Must accept its own result."""


class JudgeColumn(list["float | None"]):
    """A column with the reasons of its missing values: `reasons` says how many rollouts lack a score for which reason.

    A None without a reason is a row that the column is not for.
    """

    def __init__(self, values: Sequence[float | None], reasons: Mapping[str, int]):
        super().__init__(values)
        self.reasons: dict[str, int] = dict(reasons)


@dataclass(kw_only=True)
class Tally:
    """Collects reasons while a column is computed."""

    reasons: dict[str, int] = field(default_factory=dict[str, int])

    def missing(self, problem: Problem) -> None:
        """Count a rollout without a score; returns None, its value."""
        self.reasons[problem.reason] = self.reasons.get(problem.reason, 0) + 1


def read_object(text: str, ident: str) -> dict[str, Any]:
    """The last JSON object in a reply whose `id` is `ident`, also inside another; text around it does not matter.

    Raises:
        Unreadable: `no_json`, or `wrong_id` where there are objects but none with that id.
    """
    text = text[-MAX_TEXT:]
    seen, place = False, len(text)
    for _ in range(CANDIDATES):
        place = text.rfind("{", 0, place)
        if place < 0:
            break
        found = first_value(text, place)
        if isinstance(found, dict):
            seen = True
            if found.get("id") == ident:
                return found
    if seen:
        raise Unreadable("wrong_id", f'the object does not carry "id": "{ident}"')
    raise Unreadable("no_json", "there is no JSON object in the reply")


def finite(value: Any, name: str, low: float, high: float) -> float:
    """A number of a verdict.

    Raises:
        Unreadable: `missing`, `not_a_number` or `out_of_range`.
    """
    if value is None:
        raise Unreadable("missing", f"'{name}' is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable("not_a_number", f"'{name}' is not a number")
    if not low <= value <= high or not math.isfinite(value):  # the first also catches integers that no float can hold
        raise Unreadable("out_of_range", f"'{name}' is not between {low:g} and {high:g}")
    return float(value)


def score_check(low: float = 0.0, high: float = 1.0) -> Check:
    """{"score": number} within bounds."""

    def check(found: Mapping[str, Any]) -> Verdict:
        return {"score": finite(found.get("score"), "score", low, high)}

    return check


def label_check(*labels: str) -> Check:
    """{"label": one of these}, upper or lower case."""

    def check(found: Mapping[str, Any]) -> Verdict:
        value = found.get("label")
        word = value.strip().upper() if isinstance(value, str) else ""
        if word not in labels:
            raise Unreadable("missing" if value is None else "label", f"'label' must be one of {', '.join(labels)}")
        return {"label": word}

    return check


def items_check(ids: Sequence[str], low: float = 0.0, high: float = 1.0) -> Check:
    """{"items": [{"id": ..., "score": number}, ...]}, each of these ids exactly once, in any order."""

    def check(found: Mapping[str, Any]) -> Verdict:
        items = found.get("items")
        if not isinstance(items, list):
            raise Unreadable("missing", "'items' must be a list")
        if len(items) != len(ids):
            raise Unreadable("wrong_count", f"'items' has {len(items)} entries, expected {len(ids)}")
        scores: dict[str, float] = {}
        for item in items:
            name = item.get("id") if isinstance(item, dict) else None
            if not isinstance(name, str) or name not in ids or name in scores:
                raise Unreadable("wrong_id", f"'items' must hold each of the ids {', '.join(ids)} once")
            scores[name] = finite(item.get("score"), f"score of item {name}", low, high)
        return {"items": [{"id": name, "score": scores[name]} for name in ids]}

    return check
