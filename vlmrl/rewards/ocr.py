"""Rewards `ocr_anls`, `ocr_wer`: text read from a picture, against the best of the row's gold answers (`answer` and `gt.answers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.answers.short_text import gold_answers
from vlmrl.answers.tags import parse
from vlmrl.metrics.ocr import ANLS_THRESHOLD, accuracy, anls, word_error_rate
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("ocr_anls", paper="arXiv:1905.13648")
def ocr_anls(group: Group, ctx: RewardContext, *, threshold: float = ANLS_THRESHOLD) -> list[float | None]:
    """Normalised Levenshtein similarity to the best gold answer, 0 below `threshold`: in [0, 1]. Case and spacing do not count.

    Exactly at the threshold it counts, as in the official evaluation code. Only for rows of answer type `short_text` (else None).

    Raises:
        ValueError: the threshold is not in [0, 1].
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"ocr_anls: threshold must be in [0, 1], got {threshold}")
    return _scored(group, lambda answer, golds: anls(answer, golds, threshold=threshold))


@reward("ocr_wer", paper="arXiv:2503.21776")
def ocr_wer(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 - word error rate against the best gold answer, at least 0: in [0, 1]. Case counts.

    The OCR reward of Video-R1. Only for rows of answer type `short_text` (else None).
    """
    return _scored(group, lambda answer, golds: accuracy(word_error_rate, answer, golds))


def _scored(group: Group, score: Callable[[str, Sequence[str]], float]) -> list[float | None]:
    sample = group.prompt.sample
    if sample.answer_type != "short_text":
        return [None] * len(group.rollouts)
    golds = gold_answers(sample)
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [0.0 if answer is None else score(answer, golds) for answer in answers]
