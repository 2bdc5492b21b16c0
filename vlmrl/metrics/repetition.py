"""Repetition of a text: the share of its n-grams of words that occur again."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 65536
"""Characters of a text that are looked at, from its end, where a collapsed completion repeats itself."""


def words_of(text: str) -> list[str]:
    """Split the last `LONGEST` characters of a text into lower-case words between white space."""
    return text[-LONGEST:].lower().split()


def repeated_share(words: Sequence[str], n: int) -> float:
    """Compute 1 - (different n-grams) / (n-grams). Linear in the number of words.

    The measure of arXiv:2502.03373, appendix C.2, as the released code counts it.

    Returns:
        In [0, 1); 0 for fewer than n words.

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"repeated_share: n must be at least 1, got {n}")
    total = len(words) - n + 1
    if total < 1:
        return 0.0
    return 1 - len(set(zip(*(words[i:] for i in range(n)), strict=False))) / total
