"""Chat messages of foreign rows: a system text, earlier turns where the source takes them (`turns`), one question, at most one answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from vlmrl.data.row import MESSAGES_TEXT
from vlmrl.errors import RowError

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}
CHAT_KEYS = ("messages", "conversations", "message", "prompt")
"""Columns that hold messages in one shape or another."""
_MEDIA_PARTS = {"image": "image", "video": "video", "image_url": "image", "video_url": "video"}


@dataclass(kw_only=True, slots=True)
class Chat:
    """One exchange, with those before it. `images` and `videos` are those that stand inside the messages as typed parts."""

    system: str | None = None
    history: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    question: str = ""
    answer: str | None = None
    images: list[object] = field(default_factory=list[object])
    videos: list[object] = field(default_factory=list[object])


def from_text(value: object, place: str) -> object:
    """Messages that are given as JSON text (OpenRLHF-M), as the list that they are; any other value as it is.

    Raises:
        RowError: `json`: text that begins like a list of messages and is no JSON.
    """
    if not isinstance(value, str) or not MESSAGES_TEXT.match(value):
        return value
    if value.count("[") + value.count("{") > 4096:  # bounds the depth of what the JSON reader goes through
        raise RowError("json", f"'{place}' is a list of messages as JSON text, with more than 4096 brackets")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError("json", f"'{place}' begins like a list of messages as JSON text and is none: {str(error)[:80]}") from error


def with_lists(row: Mapping[str, Any], keys: Sequence[str] = CHAT_KEYS) -> Mapping[str, Any]:
    """The row with the messages in these columns as lists where they were JSON text; the row itself where there are none.

    Raises:
        RowError: as `from_text`.
    """
    opened = {key: from_text(row[key], key) for key in keys if isinstance(row.get(key), str)}
    return {**row, **opened} if any(not isinstance(value, str) for value in opened.values()) else row


def read_prompt(value: object, place: str, *, several: bool) -> Chat:
    """A question as text, or messages as `read_chat` takes them.

    Raises:
        RowError: as `read_chat`; `missing_key`.
    """
    if value is None:
        raise RowError("missing_key", f"'{place}' is missing")
    if not isinstance(value, str):
        return read_chat(value, place, several=several)
    if not value.strip():
        raise RowError("bad_value", f"'{place}' is empty")
    return Chat(question=value)


def read_chat(messages: object, place: str, *, several: bool) -> Chat:
    """Messages in either spelling: `role`/`content` or `from`/`value`. Content is text or a list of typed parts.

    A part of a medium becomes its placeholder in the text; `<image>` in a text stays.

    Args:
        several: take earlier questions with their answers as context; else they are an error.

    Raises:
        RowError: `turns` (several questions, tools, an answer before the question), `missing_key` or `bad_type`.
    """
    if not isinstance(messages, list) or not messages:
        raise RowError("bad_type", f"'{place}' must be a list of messages, got {str(messages)[:60]}")
    chat = Chat()
    last = ""
    for i, message in enumerate(cast("list[object]", messages)):
        here = f"{place}[{i}]"
        role, content = _message(message, here)
        if role == "user" and last == "assistant" and chat.answer is not None:
            if not several:
                raise RowError("turns", f"'{here}' is a second question; set 'turns' of the source: first, last or split")
            chat.history.append((chat.question, chat.answer))
            chat.answer = None
            last = "system"
        if role == "system" and i == 0:
            chat.system = _text(content, chat, here, media=False)
        elif role == "user" and last in ("", "system"):
            chat.question = _text(content, chat, here, media=True)
        elif role == "assistant" and last == "user":
            chat.answer = _text(content, chat, here, media=False)
        else:
            after = f" after '{last}'" if last else ""
            raise RowError("turns", f"'{here}' is a turn of '{role}'{after}; questions and answers come in turns, the question first")
        last = role
    if not chat.question.strip():
        raise RowError("missing_key", f"'{place}' has no text of the user")
    return chat


def role_of(message: object) -> str | None:
    """`user`, `assistant` or `system`; None for what is no such message."""
    if not isinstance(message, Mapping):
        return None
    role = message.get("role", message.get("from"))
    return ROLES.get(role) if isinstance(role, str) else None


def _message(message: object, here: str) -> tuple[str, object]:
    if not isinstance(message, Mapping):
        raise RowError("bad_type", f"'{here}' must be an object, got {type(message).__name__}")
    role_key, content_key = ("role", "content") if "role" in message else ("from", "value")
    for key in (role_key, content_key):
        if message.get(key) is None:
            raise RowError("missing_key", f"'{here}.{key}' is missing")
    role = message[role_key]
    if not isinstance(role, str) or role not in ROLES:
        raise RowError("turns", f"'{here}.{role_key}' is {str(role)[:40]!r}; known: {', '.join(ROLES)}")
    if message.get("tool_calls"):
        raise RowError("turns", f"'{here}.tool_calls': rows with tools are not read")
    return ROLES[role], message[content_key]


def _text(content: object, chat: Chat, here: str, *, media: bool) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError("bad_type", f"'{here}' must hold text or a list of parts, got {type(content).__name__}")
    out: list[str] = []
    for i, part in enumerate(cast("list[object]", content)):
        out.append(_part(part, chat, f"{here}[{i}]", media=media))
    return "".join(out)


def _part(part: Any, chat: Chat, here: str, *, media: bool) -> str:
    """Text of a typed part. What it says stands under its type, `value` (LLaMA-Factory v1), or for media `path` or `url`."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RowError("bad_type", f"'{here}' must be an object, got {type(part).__name__}")
    type_ = part.get("type")
    if type_ == "text":
        text = part.get("text", part.get("value"))
        if not isinstance(text, str):
            raise RowError("bad_type", f"'{here}.text' must be text")
        return text
    if type_ in ("audio", "audio_url", "input_audio"):
        raise RowError("sound", f"'{here}' is sound, which is not read; leave these rows out")
    kind = _MEDIA_PARTS.get(type_) if isinstance(type_, str) else None
    if kind is None or not media:
        known = "text, and image, video, image_url and video_url in the user's turn"
        raise RowError("bad_type", f"'{here}.type' is {str(type_)[:40]!r}; known: {known}")
    place = chat.images if kind == "image" else chat.videos
    medium = _medium(part, str(type_), kind)
    if medium is not None:
        place.append(medium)
    return f"<{kind}>"


def _medium(part: Mapping[str, Any], type_: str, kind: str) -> object:
    """What a part names as its medium; None where that stands in a column of the row."""
    if kind == "video" and "frames" in part:
        return {other: value for other, value in part.items() if other != "type"}
    key = next((key for key in (kind, type_, "path", "url", "value") if part.get(key) is not None), None)
    if key is None:
        return None
    medium = part[key]
    if isinstance(medium, Mapping) and isinstance(medium.get("url"), str | Mapping):
        medium = medium["url"]  # {"type": "image_url", "image_url": {"url": ..., "detail": ...}}
    rest = {other: value for other, value in part.items() if other not in ("type", key) and value is not None}
    return medium if not rest or key != kind else {kind: medium, **rest}


def merged(inside: list[object], columns: list[object], kind: str) -> list[object]:
    """Media from within the messages or from the columns of the row; never from both.

    Raises:
        RowError: `bad_value`.
    """
    if inside and columns:
        raise RowError("bad_value", f"{kind}s stand both in the messages and in a column of the row; give them once")
    return inside or columns
