"""Right or wrong by a named check, for rewards that shape correctness."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Literal

from vlmrl.answers.choice import right_choice
from vlmrl.answers.exact_text import normalise
from vlmrl.metrics.math import equivalent
from vlmrl.types import Sample

Check = Literal["exact", "choice", "math"]
IMPORTS = ("math_verify",) if importlib.util.find_spec("math_verify") else ()
"""What a worker imports before it starts the clock. Where it is missing, the check itself says what to install."""


def check_of(name: Check, sample: Sample) -> Callable[[str], bool] | None:
    """Make the check of whether an answer (the text between the tags) is right for this row; None if it is not for rows of its type.

    `exact` (any row): equality up to case and white space. `choice` (answer type `choice`): the same option, by letter or by text of
    `options`; where the row's own answer names no option (yes or no without options), equality. `math` (answer type `math`):
    `metrics.math.equivalent`.

    Returns:
        (answer) -> whether it is right.

    Raises:
        ValueError: the row's options cannot be used.
    """
    if name == "exact":
        gold = normalise(sample.answer)
        return lambda answer: normalise(answer) == gold
    if sample.answer_type != name:
        return None
    return right_choice(sample) if name == "choice" else lambda answer: equivalent(answer, sample.answer)
