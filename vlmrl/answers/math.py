"""A mathematical result, compared by `metrics.math.equivalent`."""

from __future__ import annotations

from typing import Literal

from vlmrl.answers.base import AnswerType, Scored, answer_type
from vlmrl.answers.exact_text import EXACT
from vlmrl.answers.foreign import ForeignRow, Gold, text_of
from vlmrl.answers.tags import answer_view
from vlmrl.metrics.math import equivalent, stated
from vlmrl.types import Sample


@answer_type("math")
class Math(AnswerType):
    """A number, formula or set, right if it is mathematically equal to the gold answer."""

    ask = "the final result"
    main = "exact"
    metrics = (EXACT,)

    def score(self, answer: str | None, sample: Sample, *, take: Literal["all", "stated"] = "all") -> Scored:
        """Equality of the answer as a whole. `take: stated` is for completions as a whole: their last answer block, or what they state as
        their result (`metrics.math.stated`)."""
        if answer is None:
            return None, (), {"exact": 0.0}
        readings = [answer] if take == "all" else [answer_view(answer), stated(answer) or ""]
        return (), (), {"exact": float(any(equivalent(reading, sample.answer) for reading in readings))}

    def convert(self, value: object, row: ForeignRow) -> Gold:
        return Gold(answer=text_of(value), gt={})
