"""Chat messages of foreign rows: one system text, one question, at most one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmrl.errors import RowError

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
}


@dataclass(kw_only=True, slots=True)
class Chat:
    """One exchange. `images` and `videos` are those that stand inside the messages as typed parts."""

    system: str | None = None
    question: str = ""
    answer: str | None = None
    images: list[object] = field(default_factory=list[object])
    videos: list[object] = field(default_factory=list[object])


def read_chat(messages: object, place: str) -> Chat:
    """Messages in either spelling: `role`/`content` or `from`/`value`. Content is text or a list of typed parts.

    A part of a medium becomes its placeholder in the text; `<image>` in a text stays.

    Raises:
        RowError: `turns` (several questions, tools, an answer before the question), `missing_key` or `bad_type`.
    """
    if not isinstance(messages, list) or not messages:
        raise RowError("bad_type", f"'{place}' must be a list of messages, got {str(messages)[:60]}")
    chat = Chat()
    last = ""
    for i, message in enumerate(messages):
        here = f"{place}[{i}]"
        role, content = _message(message, here)
        if role == "system" and i == 0:
            chat.system = _text(content, chat, here, media=False)
        elif role == "user" and last in ("", "system"):
            chat.question = _text(content, chat, here, media=True)
        elif role == "assistant" and last == "user":
            chat.answer = _text(content, chat, here, media=False)
        else:
            after = f" after '{last}'" if last else ""
            raise RowError("turns", f"'{here}' is a turn of '{role}'{after}; a row is one question and at most one answer")
        last = role
    if not chat.question.strip():
        raise RowError("missing_key", f"'{place}' has no text of the user")
    return chat


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
    for i, part in enumerate(content):
        out.append(_part(part, chat, f"{here}[{i}]", media=media))
    return "".join(out)


def _part(part: Any, chat: Chat, here: str, *, media: bool) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RowError("bad_type", f"'{here}' must be an object, got {type(part).__name__}")
    kind = part.get("type")
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise RowError("bad_type", f"'{here}.text' must be text")
        return part["text"]
    if kind not in ("image", "video") or not media:
        raise RowError("bad_type", f"'{here}.type' is {str(kind)[:40]!r}; known: text, and image and video in the user's turn")
    place = chat.images if kind == "image" else chat.videos
    if part.get(kind) is not None:
        place.append(part[kind] if set(part) <= {"type", kind} else {key: value for key, value in part.items() if key != "type"})
    elif part.get("path") is not None:
        place.append(part["path"])
    elif part.get("url") is not None:
        raise RowError("forbidden", f"'{here}.url': nothing is downloaded; give a path relative to the media root")
    return f"<{kind}>"


def merged(inside: list[object], columns: list[object], kind: str) -> list[object]:
    """Media from within the messages or from the columns of the row; never from both.

    Raises:
        RowError: `bad_value`.
    """
    if inside and columns:
        raise RowError("bad_value", f"{kind}s stand both in the messages and in a column of the row; give them once")
    return inside or columns
