"""Checks that several rewards share: right or wrong by a named rule, the options of a row, its gold answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Literal

from vlmrl.metrics.math import equivalent
from vlmrl.metrics.text import read_choice
from vlmrl.rewards.exact import normalise
from vlmrl.types import Sample

Check = Literal["exact", "choice", "math"]
IMPORTS = ("math_verify",) if importlib.util.find_spec("math_verify") else ()
"""What a worker imports before it starts the clock. Where it is missing, the check itself says what to install."""


def check_of(name: Check, sample: Sample) -> Callable[[str], bool] | None:
    """Whether an answer (the text between the tags) is right for this row; None if the check is not for rows of its type.

    `exact` (any row): equality up to case and white space. `choice` (answer type `choice`): the same option, by letter or by text of
    `options`; where the row's own answer names no option (yes or no without options), equality. `math` (answer type `math`):
    `metrics.math.equivalent`.

    Raises:
        ValueError: the row's options cannot be used.
    """
    gold = normalise(sample.answer)
    if name == "math":
        return (lambda answer: equivalent(answer, sample.answer)) if sample.answer_type == "math" else None
    if name == "choice":
        if sample.answer_type != "choice":
            return None
        options = options_of(sample)
        letter = read_choice(sample.answer, options)
        if letter is not None:
            return lambda answer: read_choice(answer, options) == letter
    return lambda answer: normalise(answer) == gold


def options_of(sample: Sample) -> list[str]:
    """`meta.options` of the row; empty without.

    Raises:
        ValueError: they are not a list of at most 26 texts.
    """
    options = sample.meta.get("options") or []
    if not isinstance(options, list | tuple) or len(options) > 26 or not all(isinstance(option, str) for option in options):
        raise ValueError(f"row '{sample.id}' ({sample.source}): options must be a list of at most 26 texts, got {str(options)[:80]}")
    return list(options)


def gold_answers(sample: Sample) -> list[str]:
    """The row's answer, and the others that `gt.answers` accepts, each once.

    Raises:
        ValueError: `gt.answers` is not a list of texts.
    """
    more = sample.gt.get("answers") or []
    if not isinstance(more, list | tuple) or not all(isinstance(text, str) for text in more):
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.answers must be a list of texts, got {str(more)[:80]}")
    return list(dict.fromkeys([sample.answer, *more]))
