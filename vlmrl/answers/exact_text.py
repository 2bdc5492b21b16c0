"""A text that is compared as a whole: equality with the gold answer, or one of the texts that the row lists in `gt.accepted`."""

from __future__ import annotations

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.foreign import ForeignRow, Gold, texts_of
from vlmrl.metrics.relaxed import open_match
from vlmrl.types import Sample

EXACT = Metric("exact", "exact", scored("exact"))
THOUGHT_METRICS = (
    Metric("consistency", "consistent thought", scored("consistency")),
    Metric("grounding", "grounded thought", scored("grounding")),
)
"""By rule, of rows that say what to check a thought against; consistency of right answers only."""


def normalise(text: str) -> str:
    """Normalise a text for comparison: lower case, single spaces."""
    return " ".join(text.lower().split())


def same_text(answer: str, sample: Sample) -> bool:
    """Check whether an answer equals the gold answer up to case and white space; where the row lists `gt.accepted`, whether one of these
    is among its parts (MMMU's rule, `metrics.relaxed.open_match`).

    Raises:
        ValueError: `gt.accepted` is not a list of texts.
    """
    accepted = sample.gt.get("accepted")
    if accepted is None:
        return normalise(answer) == normalise(sample.answer)
    if not isinstance(accepted, list | tuple) or not all(isinstance(text, str) and text.strip() for text in accepted):
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.accepted must be a list of texts, got {str(accepted)[:80]}")
    return normalise(answer) == normalise(sample.answer) or open_match(answer, accepted)


@answer_type("exact_text")
class ExactText(AnswerType):
    """A text, right if it equals the gold answer up to case and white space, or says one of `gt.accepted`."""

    main = "exact"
    metrics = (EXACT, *THOUGHT_METRICS)

    def score(self, answer: str | None, sample: Sample) -> Scored:
        return None if answer is None else (), (), {"exact": float(answer is not None and same_text(answer, sample))}

    def convert(self, value: object, row: ForeignRow) -> Gold:
        texts = texts_of(value)
        return Gold(answer=texts[0], gt={"accepted": texts} if len(texts) > 1 else {})
