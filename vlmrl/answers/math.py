"""A mathematical result, compared by `metrics.math.equivalent`."""

from __future__ import annotations

from typing import Literal

from vlmrl.answers.base import AnswerType, Scored, answer_type
from vlmrl.answers.exact_text import EXACT
from vlmrl.answers.foreign import ForeignRow, Gold, text_of
from vlmrl.metrics.math import equivalent, stated
from vlmrl.types import Sample


@answer_type("math")
class Math(AnswerType):
    """A number, formula or set, right if it is mathematically equal to the gold answer."""

    ask = "the final result"
    main = "exact"
    metrics = (EXACT,)

    def score(self, answer: str | None, sample: Sample, *, take: Literal["all", "stated"] = "all") -> Scored:
        """Equality. `take`: the answer as a whole is the result, or what it states as one (`metrics.math.stated`), for answers in prose."""
        if answer is not None and take == "stated":
            answer = stated(answer)
        return None if answer is None else (), (), {"exact": float(answer is not None and equivalent(answer, sample.answer))}

    def convert(self, value: object, row: ForeignRow) -> Gold:
        return Gold(answer=text_of(value), gt={})
