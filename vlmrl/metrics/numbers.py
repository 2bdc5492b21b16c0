"""Numeric answers: reading them, exact counts, relative error and mean relative accuracy (MRA)."""

from __future__ import annotations

import re

_CAP = 4096
"""Characters of an answer that are looked at, from its end."""
_NUMBER = re.compile(r"(?<![\w.])(?<!\d,)-?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,15})?(?![\w]|[.,]\d)")
"""A whole number token: never a part of a longer one."""
_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_WORD = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})(?!\w)", re.IGNORECASE)
MRA_THRESHOLDS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
"""0.50, 0.55, ..., 0.95."""


def parse_number(text: str) -> float | None:
    """Read the one number that an answer gives.

    Digits with thousands commas and a decimal point, or an English word up to twenty. Nothing is evaluated.

    Returns:
        The number; None if the answer gives none or several different ones.
    """
    tail = text[-_CAP:]
    found = [float(match.replace(",", "")) for match in _NUMBER.findall(tail)]
    found += [float(_WORDS.index(word.lower())) for word in _WORD.findall(tail)]
    # the same number twice is one answer; of two different ones neither is chosen, or listing all would be rewarded
    return found[0] if found and all(value == found[0] for value in found) else None


def parse_count(text: str) -> int | None:
    """Read the one whole number of an answer; None if there is none, or another one as well, or it is not whole."""
    value = parse_number(text)
    return int(value) if value is not None and value == int(value) else None


def relative_error(pred: float, gold: float) -> float:
    """Compute |pred - gold| / |gold|, rounded to 9 digits so that exact thresholds do not depend on the last bit.

    With gold 0: 0 if the prediction is 0, else infinite.
    """
    if gold == 0:
        return 0.0 if pred == 0 else float("inf")
    return round(abs(pred - gold) / abs(gold), 9)


def mean_relative_accuracy(pred: float, gold: float) -> float:
    """Compute the share of thresholds t of 0.50, 0.55, ..., 0.95 with a relative error of at most 1 - t (VSI-Bench, arXiv:2412.14171)."""
    error = relative_error(pred, gold)
    return sum(error <= round(1 - t, 2) for t in MRA_THRESHOLDS) / len(MRA_THRESHOLDS)
