"""Rows that a model would misread: control tokens in their text are refused by us, before the processor is called (P15)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vlmrl.errors import RowError
from vlmrl.extras.families import generic
from vlmrl.extras.families.conform.check import Check, equal
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.subject import Tried
from vlmrl.extras.families.control import control_texts

HARMLESS = ("is 2 < 3 > 1?", "a <b>bold</b> [word] | pipe", "what is an <answer>?")
"""Texts that hold no control token of any model, though they have their signs."""


def control_tokens(tried: Tried) -> list[Check]:
    """P15: each control token in a question, and in an earlier answer, is a `RowError`; texts with signs alone are none."""
    tokenizer = tried.processor.tokenizer
    ids = (*tried.facts.pads.values(), *tried.facts.end_ids, *tried.facts.forbidden_ids)
    texts = dict.fromkeys([*(str(tokenizer.convert_ids_to_tokens(int(i))) for i in ids), *sorted(control_texts(tried.processor))])
    passed: list[str] = []
    for text in texts:
        passed += [f"{text!r} in {where}" for where, messages in rows(f"what is {text}?").items() if not _refused(tried, messages)]
    kept = [text for text in HARMLESS if _refused(tried, rows(text)["a question"])]
    return [
        equal("P15", "text", f"{len(texts)} control tokens refused before the processor", not passed, ", ".join(passed[:4])),
        equal("P15", "text", "harmless signs are not refused", not kept, ", ".join(kept)),
    ]


def rows(text: str) -> dict[str, Sequence[generic.Message]]:
    """Conversations with a text in one of their places."""

    def turn(role: str, said: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": said}]}

    return {"a question": [turn("user", text)], "an earlier answer": [turn("user", "one"), turn("assistant", text), turn("user", "two")]}


def _refused(tried: Tried, messages: Sequence[generic.Message]) -> bool:
    """Whether a row is refused as it should be: by us, and without a call of the processor."""
    with _watched(tried.processor) as calls:
        try:
            generic.encode(tried.processor, tried.facts.pads, messages, [])
        except RowError as error:
            return error.reason == "control_token" and not calls
        except ERRORS:
            return False
    return False


@contextmanager
def _watched(processor: Any) -> Iterator[list[int]]:
    """The calls of a processor while the block runs."""
    kind = type(processor)
    plain, calls = kind.__call__, []

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return plain(self, *args, **kwargs)

    kind.__call__ = call
    try:
        yield calls
    finally:
        kind.__call__ = plain
