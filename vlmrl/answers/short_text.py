"""A short text that is compared by likeness, as in reading pictures, charts and documents: the best of `answer` and `gt.answers` counts."""

from __future__ import annotations

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.foreign import ForeignRow, Gold, texts_of
from vlmrl.metrics.ocr import accuracy, anls, word_error_rate
from vlmrl.metrics.relaxed import contains_answer
from vlmrl.metrics.text import relaxed_accuracy
from vlmrl.types import Sample


def gold_answers(sample: Sample) -> list[str]:
    """Read the row's answer, and the others that `gt.answers` accepts, each once.

    Returns:
        At least one text, the row's own answer first.

    Raises:
        ValueError: `gt.answers` is not a list of texts.
    """
    more = sample.gt.get("answers") or []
    if not isinstance(more, list | tuple) or not all(isinstance(text, str) for text in more):
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.answers must be a list of texts, got {str(more)[:80]}")
    return list(dict.fromkeys([sample.answer, *more]))


@answer_type("short_text")
class ShortText(AnswerType):
    """A short text, scored by ANLS, 1 - word error rate, ChartQA's relaxed accuracy and OCRBench's rule."""

    ask = "the text as it is written"
    main = "anls"
    metrics = (
        Metric("anls", "ANLS", scored("anls")),
        Metric("word_accuracy", "1 - WER", scored("word_accuracy")),
        Metric("relaxed", "relaxed accuracy", scored("relaxed")),
        Metric("contained", "answer contained", scored("contained")),
    )

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """ANLS, 1 - word error rate, ChartQA's relaxed accuracy, and OCRBench's rule (a true answer stands in the answer; `gt.formula`:
        white space aside), each with the best of `answer` and `gt.answers`.

        Raises:
            ValueError: `gt.answers` is not a list of texts.
        """
        golds = gold_answers(sample)
        if answer is None:
            return None, (), {"anls": 0.0, "word_accuracy": 0.0, "relaxed": 0.0, "contained": 0.0}
        scores = {
            "anls": anls(answer, golds),
            "word_accuracy": accuracy(word_error_rate, answer, golds),
            "relaxed": float(any(relaxed_accuracy(answer, gold) for gold in golds)),
            "contained": float(contains_answer(answer, golds, formula=bool(sample.gt.get("formula")))),
        }
        return (), (), scores

    def convert(self, value: object, row: ForeignRow) -> Gold:
        texts = texts_of(value)
        return Gold(answer=texts[0], gt={"answers": texts} if len(texts) > 1 else {})
