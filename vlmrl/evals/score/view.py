"""What of a text is its answer: between the tags that were asked for, or, for a model that knows no tags, whatever it says at the end."""

from __future__ import annotations

from typing import Literal, get_args

from vlmrl.answers.tags import answer_view, parse

View = Literal["tagged", "view"]


def answer_of(text: str, answer_format: str, view: View) -> str | None:
    """The answer of a completion; None if it has none.

    `tagged`: the last closed answer block outside the thought, as rewards read it; a text without one has no answer. For models that were
    trained with the answer format: the form is a part of what is measured.

    `view`: the same where there is such a block, else what follows the thought, else the whole text; a thought that never closes leaves
    nothing. For models that were not, whose answers scorers then have to find in a sentence.

    Raises:
        ValueError: an unknown view.
    """
    if view not in get_args(View):
        raise ValueError(f"view must be one of {', '.join(get_args(View))}, got '{view}'")
    tagged = parse(text, answer_format).answer
    return tagged if view == "tagged" or tagged is not None else answer_view(text) or None
