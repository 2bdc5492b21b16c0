"""A thought cut into pieces of equal numbers of words, for strategies that go on from its beginnings and for what reads their outcome."""

from __future__ import annotations

import re

from vlmrl.answers.tags import MAX_CHARS

MOST = 20000
"""Characters of a response that are cut; what comes behind belongs to the last piece."""
_OPENS = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_CLOSES = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


def thought_span(text: str) -> tuple[int, int]:
    """Find the characters [start, end) of the thought that a response begins with, whether or not it is ended; empty without one."""
    opening = _OPENS.match(text)
    if opening is None:
        return 0, 0
    closing = _CLOSES.search(text, opening.end())
    end = min(len(text) if closing is None else closing.start(), opening.end() + min(MOST, MAX_CHARS))
    return opening.end(), end


def cut_places(text: str, pieces: int) -> list[int]:
    """Find where in the text a piece ends and another begins, in rising order: at most `pieces` - 1, each behind a word of the thought."""
    start, end = thought_span(text)
    words = [start + word.end() for word in re.finditer(r"\S+", text[start:end])]
    return [words[n - 1] for n in sorted({len(words) * i // pieces for i in range(1, pieces)} - {0, len(words)})]


def beginning(text: str, place: int) -> str:
    """Cut what is shown of a thought up to a place."""
    return text[thought_span(text)[0] : place].strip()
