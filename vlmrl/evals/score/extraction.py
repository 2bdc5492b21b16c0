"""Answer extraction: what of a completion is its answer. Strict: between the tags that were asked for. Lenient: also without tags.
First and whole: as evaluations of others read a completion."""

from __future__ import annotations

from typing import Literal, get_args

from vlmrl.answers.tags import answer_view, first_answer, parse

Extraction = Literal["strict", "lenient", "first", "whole"]


def answer_of(text: str, answer_format: str, extraction: Extraction) -> str | None:
    """Extract the answer of a completion; None if it has none.

    `strict`: the last closed answer block outside the thought, as rewards read it; a text without one has no answer. For models that were
    trained with the answer format: the form is a part of what is measured.

    `lenient`: the same where there is such a block, else what follows the thought, else the whole text; a thought that never closes
    leaves nothing. For models that were not, whose answers scorers then have to find in a sentence.

    `first`: the first closed answer block outside the thought, else the whole text, thought included.

    `whole`: the whole text, thought and tags included.

    Raises:
        ValueError: an unknown extraction.
    """
    if extraction not in get_args(Extraction):
        raise ValueError(f"extraction must be one of {', '.join(get_args(Extraction))}, got '{extraction}'")
    if extraction in ("first", "whole"):
        found = first_answer(text) if extraction == "first" else None
        return found if found is not None else text.strip() or None
    tagged = parse(text, answer_format).answer
    return tagged if extraction == "strict" or tagged is not None else answer_view(text) or None
