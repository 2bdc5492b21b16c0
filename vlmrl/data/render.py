"""Renders a sample as chat messages: media placeholders, the question, and the instruction of the answer format."""

from __future__ import annotations

from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import FREE
from vlmrl.errors import RowError
from vlmrl.types import Sample

ANSWER_FORMATS = ("think", "answer_only", "think_or_not")

_INSTRUCTION = {
    "answer_only": "Give {what} in <answer></answer>.",
    "think": "Think in <think></think>, then give {what} in <answer></answer>.",
    "think_or_not": "Think in <think></think> or leave it empty, then give {what} in <answer></answer>.",
}


def instruction(answer_format: str, answer_type: str) -> str:
    """The sentence that asks for the answer format.

    Raises:
        RowError: the answer format is unknown.
    """
    if answer_format == FREE:
        return ""
    if answer_format not in _INSTRUCTION:
        raise RowError("answer_format", f"unknown answer format '{answer_format}'; known: {', '.join(ANSWER_FORMATS)}")
    return _INSTRUCTION[answer_format].format(what=ANSWER_TYPES[answer_type].ask)


def messages(sample: Sample, answer_format: str) -> list[dict[str, Any]]:
    """One user turn: the media in order, then question and instruction; or question, media, instruction where the row says so."""
    media: list[dict[str, Any]] = [{"type": ref.kind} for ref in sample.media]
    ask = instruction(answer_format, sample.answer_type)
    if sample.question_first:
        content = [{"type": "text", "text": sample.question}, *media, *([{"type": "text", "text": ask}] if ask else [])]
    else:
        content = [*media, {"type": "text", "text": f"{sample.question} {ask}" if ask else sample.question}]
    return [{"role": "user", "content": content}]
