"""OCR metrics: edit distances, ANLS and word error rate.

Distances are rapidfuzz's (bit-parallel), so that a 64 KB answer costs milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.metrics.text import collapse, edit_distance

ANLS_THRESHOLD = 0.5


def similarity(pred: str, gold: str) -> float:
    """Compute 1 - Levenshtein distance / length of the longer text, in [0, 1]; 1 for two empty texts. Of the texts as they are."""
    longer = max(len(pred), len(gold))
    return 1.0 if longer == 0 else 1 - edit_distance(pred, gold) / longer


def anls(pred: str, golds: Sequence[str], *, threshold: float = ANLS_THRESHOLD, strict: bool = False) -> float:
    """Compute normalised Levenshtein similarity of one question, the best over its gold answers (ST-VQA, arXiv:1905.13648).

    Case, and white space at the ends and its amount, do not count; lengths are those after that. A similarity below `threshold` is
    0. Exactly at it, the two usages differ: the official evaluation code keeps it (`strict=False`), the paper's formula (NL < 0.5)
    does not (`strict=True`). ANLS of a set is the mean over questions.

    Returns:
        In [0, 1].

    Raises:
        ValueError: no gold answers.
    """
    if not golds:
        raise ValueError("anls: no gold answers")
    # Rounded, so that the threshold is one: 1 - 1/5 is 0.8, 1 - 3/5 is 0.4.
    best = max(round(similarity(collapse(pred), collapse(gold)), 12) for gold in golds)
    return best if best > threshold or (best == threshold and not strict) else 0.0


def word_error_rate(pred: str, gold: str) -> float:
    """Compute word insertions, deletions and replacements over the words of `gold`. Case counts.

    Against a gold text without words: 0 if the prediction has none either, else their number (as against one word).

    Returns:
        0 or more, above 1 for a long wrong answer.
    """
    words = gold.split()
    return edit_distance(pred.split(), words) / max(1, len(words))


def accuracy(error_rate: Callable[[str, str], float], pred: str, golds: Sequence[str]) -> float:
    """Compute 1 - error rate, at least 0, the best over the gold answers.

    Raises:
        ValueError: no gold answers.
    """
    if not golds:
        raise ValueError("accuracy: no gold answers")
    return max(max(0.0, 1 - error_rate(pred, gold)) for gold in golds)
