"""Relaxed matching of texts: the gold answer stands inside the answer (OCRBench), or among its parts (MMMU).

Both are for short answers. A text that mentions many things contains many gold answers, so they must see the answer alone
(`answers.tags.answer_view`), never the thought.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_CAP = 4096
_NARROW = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x3000: 0x20}
"""Full-width forms of ASCII, and the wide space."""
_KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
"""What stands before the answer in a sentence of MMMU's evaluation."""
_NUMBER = re.compile(r"(?<![\w.])(?<!\d,)-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d{1,3})?(?!\w|[.,]\d)")
"""A whole number token: never a part of a longer one."""
_PLAIN = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?", re.IGNORECASE)
_PUNCTUATION = (":", ",", ".", "!", "?", ";", "'")


def contains_answer(pred: str, golds: Sequence[str], *, formula: bool = False) -> bool:
    """Check by OCRBench's rule (arXiv:2305.07895) whether one of the gold answers stands in the answer, letter case and width aside.

    `formula` is for its handwritten formulas (HME100k): white space is left out, and case counts. The published score is the number of
    right answers of 1000.

    Raises:
        ValueError: no gold answers, or a blank one, which every answer would contain.
    """
    if not golds or not all(gold.strip() for gold in golds):
        raise ValueError(f"contains_answer: gold answers must be given and not blank, got {list(golds)}")

    def plain(text: str) -> str:
        if formula:
            return text.strip().replace("\n", " ").replace(" ", "")
        return text.translate(_NARROW).lower().strip().replace("\n", " ")

    ours = plain(pred)
    return any(plain(gold) in ours for gold in golds)


def open_match(pred: str, golds: Sequence[str]) -> bool:
    """Check by MMMU's rule for open questions (arXiv:2311.16502) whether one of the gold answers is among the parts of the answer.

    Parts are what follows the last of some key words in each line (the shortest such rest; the whole answer where there is none), and
    the numbers in it. A gold number must equal one of them after rounding to 2 decimals, a gold text must stand in one; a gold text of
    one character must have a space beside it, or be the part.

    Unlike the published code, a number is read whole (`234` is no part of `1,234`, and `.5` keeps its point), and words such as `nan` and
    `inf` are text.

    Raises:
        ValueError: no gold answers, or a blank one.
    """
    if not golds or not all(gold.strip() for gold in golds):
        raise ValueError(f"open_match: gold answers must be given and not blank, got {list(golds)}")
    texts: set[str] = set()
    numbers: set[float] = set()
    for part in _parts(pred[-_CAP:]):
        # the part itself may be a number, and numbers within it count too
        for piece in (part, *(match[0] for match in _NUMBER.finditer(part))):
            value = _value(piece)
            if value is None:
                texts |= set(_spaced(piece))
            else:
                numbers.add(value)
    for gold in golds:
        value = _value(gold)
        if value is not None and value in numbers:
            return True
        if value is None and any(form in text for form in _spaced(gold) for text in texts):
            return True
    return False


def _parts(text: str) -> list[str]:
    """The rests of lines after key words, in lower case; the whole text where there are none."""
    plain = text.strip().rstrip(".").lower()
    lines = plain.split("\n")
    found: list[str] = []
    for number, line in enumerate(lines, start=1):
        keys = (*_KEYS, "=") if number == len(lines) else _KEYS
        rests = [line.rsplit(key, 1)[-1].strip() for key in keys if key in line]
        # The published code drops an empty rest as soon as it meets one; here the shortest that says something counts.
        rests = [rest for rest in rests if rest and rest not in _PUNCTUATION]
        if rests:
            found.append(min(rests, key=len))
    return found or [plain]


def _value(text: str) -> float | None:
    """A number with thousands commas, rounded to 2 decimals; None for anything else."""
    plain = text.strip()
    if len(plain) > 64 or not _PLAIN.fullmatch(plain):
        return None
    value = float(plain.replace(",", ""))
    return round(value, 2) if math.isfinite(value) else None


def _spaced(text: str) -> tuple[str, ...]:
    """A text in lower case; one character with a space before or behind it, so that it is not found inside every word."""
    plain = text.strip().lower()
    return (f" {plain}", f"{plain} ") if len(plain) == 1 else (plain,)
