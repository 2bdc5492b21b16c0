"""Rows whose text holds control tokens of a model are refused before its processor sees them: it would take them for media or turns, or
raise anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.errors import RowError

HARMLESS = "text"
Message = Mapping[str, Any]


def control_ids(processor: Any) -> frozenset[int]:
    """Special ids of the tokenizer, and every id that the processor has a name for."""
    tokenizer = processor.tokenizer
    marked = {int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = {value for name, value in vars(processor).items() if name.endswith("_token_id") and isinstance(value, int)}
    return frozenset({int(i) for i in tokenizer.all_special_ids} | marked | named)


def control_texts(processor: Any) -> frozenset[str]:
    """Texts that a processor looks for and replaces, whether the tokenizer has them as tokens or not."""
    found = {value for name, value in vars(processor).items() if name.endswith("_token") and isinstance(value, str)}
    return frozenset(text for text in found if text.strip())


def refuse(processor: Any, messages: Sequence[Message], where: str = "the row") -> None:
    """Compare the control tokens of a rendered prompt with those of the same prompt with a harmless text in place of each text.

    Raises:
        RowError: `control_token`.
    """
    special, texts = control_ids(processor), control_texts(processor)
    found, expected = (_counted(processor, one, special, texts) for one in (messages, [_harmless(m) for m in messages]))
    if found != expected:
        raise RowError("control_token", f"{where}: its text holds control tokens of the model")


def _counted(processor: Any, messages: Sequence[Message], special: frozenset[int], texts: frozenset[str]) -> tuple[int, int]:
    """(control tokens, control texts) of a prompt whose placeholders are not expanded."""
    text = str(processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    return sum(int(i) in special for i in ids), sum(text.count(one) for one in texts)


def _harmless(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": HARMLESS}
    return {**message, "content": [{**part, "text": HARMLESS} if part.get("type") == "text" else part for part in content]}
