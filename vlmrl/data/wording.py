"""Renders a recipe's wording of the prompt: what the user's turn says in place of the question and the sentence of the answer format.

`data.prompt` is a Jinja template. It sees

    question        the question with its options, which must stand in the text as it is
    ask             what the answer type asks for, as in "one number"
    instruction     our own sentence of the answer format, so that `{{ question }} {{ instruction }}` is what no template says
    answer_format, answer_type, task, meta of the row

EasyR1's `format_prompt` is such a template with `content` for `question`. Templates travel with exported models, so they are rendered in
a sandbox; a name or a key that is not there is an error, never an empty text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.errors import RowError
from vlmrl.types import Sample

NAMES = ("question", "ask", "instruction", "answer_format", "answer_type", "task", "meta")
"""What a template sees."""
# As for chat templates: a line that holds a statement alone leaves no line behind.
_JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)


def prompt_problem(template: str) -> str | None:
    """Describe what is wrong with a template before any row is seen; None where nothing is."""
    try:
        names = names_of(template)
        _compiled(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno} of the template: {error.message}"
    unknown = sorted(names - {*NAMES, *_JINJA.globals})
    if unknown:
        return f"the template names {', '.join(f'{name!r}' for name in unknown)}, which it does not see (it sees: {', '.join(NAMES)})"
    if "question" not in names:
        return "the template has no {{ question }}, so that every row would be asked the same"
    return None


def worded(template: str, sample: Sample, answer_format: str, instruction: str) -> str:
    """Render a template for a row. `instruction` is our own sentence of its answer format.

    Raises:
        RowError: `prompt`: it cannot be rendered for this row, or leaves out the question.
    """
    values = {
        "question": sample.question,
        "ask": ANSWER_TYPES[sample.answer_type].ask,
        "instruction": instruction,
        "answer_format": answer_format,
        "answer_type": sample.answer_type,
        "task": sample.task,
        "meta": sample.meta,
    }
    where = f"row '{sample.id}' ({sample.source})"
    try:
        text = _compiled(template)(**values)
    # What an expression of the template does with a row's values: a missing key, a sum of a text and a number, a division by 0.
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise RowError("prompt", f"{where}: data.prompt cannot be rendered: {type(error).__name__}: {error}") from error
    # compared as text, not by name: a filter or a condition in the template can lose the question although it names it
    if sample.question.strip() not in text:
        raise RowError("prompt", f"{where}: the text that data.prompt makes does not hold the question as it stands in the row")
    return text


@functools.lru_cache(maxsize=16)
def names_of(template: str) -> frozenset[str]:
    """Find the names that a template asks for. Raises jinja2.TemplateSyntaxError."""
    return frozenset(find_undeclared_variables(_JINJA.parse(template)))


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Callable[..., Any]:
    return _JINJA.from_string(template).render
