"""Quantities: `gt.count` or `gt.number`, else the row's answer read as a number. Two types that differ in the metric that comes first."""

from __future__ import annotations

import re

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.coordinates import plain
from vlmrl.answers.exact_text import EXACT
from vlmrl.answers.foreign import ForeignRow, Gold, text_of
from vlmrl.errors import RowError
from vlmrl.metrics.numbers import mean_relative_accuracy, parse_number, relative_error
from vlmrl.types import Sample

RELATIVE = Metric("relative_accuracy", "relative accuracy", scored("relative_accuracy"))
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,15})?%?")


@answer_type("number")
class Number(AnswerType):
    """One number, scored by equality and by mean relative accuracy."""

    ask = "one number"
    main = "exact"
    metrics = (EXACT, RELATIVE)

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Equality and mean relative accuracy.

        Raises:
            ValueError: the row has no true number.
        """
        true = next((sample.gt[key] for key in ("count", "number") if sample.gt.get(key) is not None), None)
        gold = parse_number(sample.answer) if true is None else float(true)
        if gold is None:
            raise ValueError(f"row '{sample.id}' ({sample.source}): answer {sample.answer!r} is not one number; give gt.number or gt.count")
        pred = None if answer is None else parse_number(answer)
        if pred is None:
            return None, (gold,), {"exact": 0.0, "relative_accuracy": 0.0}
        return (pred,), (gold,), {"exact": float(relative_error(pred, gold) == 0), "relative_accuracy": mean_relative_accuracy(pred, gold)}

    def convert(self, value: object, row: ForeignRow) -> Gold:
        text = text_of(value)
        # stricter than `parse_number`: a gold answer is not searched for a number in a sentence
        if not _NUMBER.fullmatch(text):
            raise RowError("answer", f"the gold answer {text[:80]!r} is not one number; without unit or formula, like 12.5 or 1,200")
        return Gold(answer=text, gt={"number": plain(float(text.replace(",", "").rstrip("%")))})


@answer_type("regression")
class Regression(Number):
    """One number whose distance from the true one counts: mean relative accuracy stands for it."""

    main = "relative_accuracy"
    metrics = (RELATIVE, EXACT)
