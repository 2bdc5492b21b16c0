"""Multiple choice: the letter of an option, or its text. The row's `options` are in `meta.options`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from vlmrl.answers.base import AnswerType, Scored, answer_type
from vlmrl.answers.exact_text import EXACT, normalise
from vlmrl.answers.foreign import ForeignRow, Gold, text_of
from vlmrl.errors import RowError
from vlmrl.metrics.text import read_choice
from vlmrl.types import Sample

_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:)]?")
_LETTER_AND_TEXT = re.compile(r"\(?([A-Z])(?:\)|[.:])\s*(.+)", re.DOTALL)
_OPTION = re.compile(r"\s*\(?([A-Za-z])(?:\)|[.:])\s*(.*)", re.DOTALL)


def options_of(sample: Sample) -> list[str]:
    """Read `meta.options` of the row; empty without.

    Returns:
        Texts of the options in the order of their letters, A first.

    Raises:
        ValueError: they are not a list of at most 26 texts.
    """
    options = sample.meta.get("options") or []
    if not isinstance(options, list | tuple) or len(options) > 26 or not all(isinstance(option, str) for option in options):
        raise ValueError(f"row '{sample.id}' ({sample.source}): options must be a list of at most 26 texts, got {str(options)[:80]}")
    return list(options)


def right_choice(sample: Sample) -> Callable[[str], bool]:
    """Make the check of whether an answer means the right option, by letter or by text; where the row's own answer names no option (yes
    or no without options), whether it equals that up to case and white space.

    Returns:
        (text of an answer) -> whether it is right.

    Raises:
        ValueError: the row's options cannot be used.
    """
    options, gold = options_of(sample), normalise(sample.answer)
    letter = read_choice(sample.answer, options)
    if letter is None:
        return lambda answer: normalise(answer) == gold
    return lambda answer: read_choice(answer, options) == letter


@answer_type("choice")
class Choice(AnswerType):
    """One of several options; an answer that means none of them, or several, cannot be read."""

    ask = "the letter of the right option"
    main = "exact"
    metrics = (EXACT,)

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Whether the answer means the right option.

        Raises:
            ValueError: the row's options cannot be used.
        """
        options = options_of(sample)
        readable = answer is not None and (read_choice(sample.answer, options) is None or read_choice(answer, options) is not None)
        return () if readable else None, (), {"exact": float(answer is not None and right_choice(sample)(answer))}

    def convert(self, value: object, row: ForeignRow) -> Gold:
        letter, texts = _choice(text_of(value), row.options)
        return Gold(answer=letter, gt={}, options=texts)


def lettered(options: Sequence[str]) -> list[str]:
    """Put letters in front of options: as they are if they have A, B, ... already, else with `A. `, `B. `, ...

    Returns:
        The options in their order, each with its letter.

    Raises:
        RowError: `options`: more than 26, or letters that are not A, B, ... in order.
    """
    if len(options) > 26:
        raise RowError("options", f"{len(options)} options; letters go to 26")
    letters = [chr(ord("A") + i) for i in range(len(options))]
    have = [match.group(1).upper() if (match := _OPTION.fullmatch(option)) else None for option in options]
    if have == letters:
        return list(options)
    # all lettered otherwise (1, 2 or B, A): our letters in front would ask for an answer that the row contradicts
    if have.count(None) == 0 and len(have) > 1:
        raise RowError("options", f"the options are lettered {', '.join(map(str, have))}, not A, B, ... in order")
    return [f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)]


def _choice(answer: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """The letter, and the options with letters."""
    texts = lettered(options)
    known = [chr(ord("A") + i) for i in range(len(texts))]
    bare = [match.group(2).strip() if (match := _OPTION.fullmatch(text)) else text for text in texts]
    # options whose text is the gold answer; several, or one that contradicts a letter, is an error and never the first of them
    same = [letter for letter, text in zip(known, bare, strict=True) if text.casefold() == answer.casefold()]
    letter = _LETTER.fullmatch(answer)
    with_text = _LETTER_AND_TEXT.fullmatch(answer)
    if letter is not None and (not known or letter.group(1).upper() in known):
        found = letter.group(1).upper()
        if same and same != [found]:
            raise RowError("answer", f"the gold answer {answer!r} is the letter of one option and the text of another")
    elif len(same) == 1:
        found = same[0]
    elif with_text is not None and (not known or with_text.group(1) in known):
        found = with_text.group(1)
        if known and bare[known.index(found)].casefold() != with_text.group(2).strip().casefold():
            raise RowError("answer", f"the gold answer {answer[:80]!r} has the letter of one option and another text")
    elif len(same) > 1:
        raise RowError("answer", f"the gold answer {answer[:80]!r} is the text of several options: {', '.join(same)}")
    else:
        shown = f"one of the options {', '.join(known)}" if known else "a letter, and the row has no options"
        raise RowError("answer", f"the gold answer {answer[:80]!r} is not {shown}")
    return found, texts
