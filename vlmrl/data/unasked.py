"""Finds a wording of the prompt (`data.wording`) that asks for another form than the one in which answers are read."""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.data.wording import names_of


def unasked(template: str, answer_format: str) -> str | None:
    """Say that a template asks for another form than the one that answers are read in; None where it names the sentence of the answer
    format, or its tags."""
    tags = ("<answer>",) if answer_format == "answer_only" else ("<think", "<answer>")
    if names_of(template) & {"instruction", "answer_format"} or all(tag in template.lower() for tag in tags):
        return None
    return (
        f"the template has neither {{{{ instruction }}}} nor {' and '.join(tags)}, and answers are read in the answer format "
        f"'{answer_format}': a model that is not asked for the form seldom writes it"
    )


def unasked_forms(template: str, answer_formats: Sequence[str]) -> list[str]:
    """List what `unasked` says of each of these answer formats, once."""
    return [text for text in (unasked(template, one) for one in dict.fromkeys(answer_formats)) if text is not None]
