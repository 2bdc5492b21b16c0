"""Checks whether a text gives an answer away: the leak check of HiLL and SAGE, for hints that the policy writes itself.

A gold answer of more than two characters leaks where it is found as it is (case and white space aside, not within a longer word or
number). A shorter one (`B`, `7`) is found in any text by accident, so it counts only where it is presented as the answer: in a box,
in answer tags, or after words like "answer" or "option". Ours, for vision: answers made of numbers (time spans, boxes, points) leak
with any one of their numbers, whatever its spelling (3, 3.0, 3.00), and so does anything that looks like coordinates.
"""

from __future__ import annotations

import re

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.types import Sample

SHORT = 2
"""Characters up to which an answer is looked for only where it is presented as one."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w]|\.\d)")
_COORDINATES = re.compile(r"[\[(]\s*-?\d+(?:\.\d+)?\s*,\s*-?\d+(?:\.\d+)?")
_PRESENTED = (
    r"\\boxed\s*\{{\s*{a}\s*\}}",
    r"<answer>\s*{a}\s*(?:</answer>|$)",
    r"\b(?:answer|option|choice|result|solution)\b(?:\s+(?:is|must be|will be|should be|equals))?\s*[:=]?\s*[(\[\"'*]*{a}(?!\w)",
)


def leak(text: str, sample: Sample) -> str | None:
    """Find how `text` gives the sample's answer away: `answer_tag`, `coordinates`, `number` or `answer`; None where it does not."""
    plain = " ".join(text.split()).casefold()  # white space and case aside
    answer = " ".join(sample.answer.split()).casefold()
    if "<answer>" in plain or "</answer>" in plain:
        return "answer_tag"
    if ANSWER_TYPES[sample.answer_type].numbers_leak:
        if _COORDINATES.search(plain):
            return "coordinates"
        if {float(n) for n in _NUMBER.findall(answer)} & {float(n) for n in _NUMBER.findall(plain)}:
            return "number"
    if not answer:
        return None
    escaped = re.escape(answer)
    if len(answer) > SHORT:
        return "answer" if re.search(rf"(?<!\w){escaped}(?!\w)", plain) else None
    return "answer" if any(re.search(pattern.format(a=escaped), plain) for pattern in _PRESENTED) else None
