"""Rows with several turns, cut as the source's `turns` says: the first question, the last one, or one row for every answer.

    first   the first question with its answer; what follows is left out, with its media
    last    the last answer; the turns before it are context (`history`)
    split   one row per answer, each with the turns before it as context; ids get `#turn1`, `#turn2`, ...

Media in columns go with the turn where their placeholders stand; without placeholders all of them belong to the first turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from vlmrl.errors import RowError
from vlmrl.extras.importers.chat import CHAT_KEYS, role_of
from vlmrl.extras.importers.sizes import SIZE_KEYS

Turns = Literal["first", "last", "split"]

_PLACEHOLDER = re.compile(r"<(image|video)>")
_MARK = re.compile(r"<(ref-object|bbox)>")
ANSWERS = ("solution", "answer", "ground_truth", "completion", "reward_model")
"""Columns with the gold answer of the last question."""


def taken(
    row: Mapping[str, Any], turns: Turns | None, *, chats: Sequence[str] = CHAT_KEYS, answers: Sequence[str] = ANSWERS
) -> list[tuple[str, Mapping[str, Any]]]:
    """(what to add to the id, the row with the turns to read) of each row that a foreign row stands for.

    Rows with one question come back as they are, and so do all where `turns` is None or there are no messages.

    Args:
        chats: columns that may hold the messages.
        answers: columns that may hold the gold answer of the last question.

    Raises:
        RowError: `turns` or `placeholder`: media or the gold answer cannot be given to one of the turns.
    """
    if turns is None:
        return [("", row)]
    key, messages = next(((key, row[key]) for key in chats if _is_chat(row.get(key))), ("", []))
    roles = [role_of(message) for message in messages]
    ends = [i + 1 for i, role in enumerate(roles) if role == "assistant"]
    if roles.count("user") < 2:
        return [("", row)]
    given = next((name for name in answers if row.get(name) is not None), None)
    if roles[-1] == "user":
        ends.append(len(messages))  # its answer stands in a column
    if turns == "last":
        return [("", row)]
    if given is not None:
        raise RowError("turns", f"'{given}' is the gold answer of the last question only; set 'turns: last', not '{turns}'")
    if turns == "first":
        return [("", _cut(row, key, messages, ends[0]))]
    return [(f"#turn{n}", _cut(row, key, messages, end)) for n, end in enumerate(ends, start=1)]


def _is_chat(value: object) -> bool:
    return isinstance(value, list) and any(role_of(message) is not None for message in cast("list[object]", value))


def _cut(row: Mapping[str, Any], key: str, messages: Sequence[Any], end: int) -> dict[str, Any]:
    """The row with its first `end` messages and what belongs to them."""
    out = {**row, key: list(messages[:end])}
    if end == len(messages):
        return out
    kept, whole = _texts(messages[:end]), _texts(messages)
    for kind in ("image", "video"):
        for column in (kind, f"{kind}s"):
            if row.get(column) is None:
                continue
            value = row[column]
            media = cast("list[object]", value) if isinstance(value, list) else [value]
            shown, all_of = _count(_PLACEHOLDER, kept, kind), _count(_PLACEHOLDER, whole, kind)
            if not all_of:
                continue
            if all_of != len(media):
                raise RowError("placeholder", f"the messages have {all_of} <{kind}> but '{column}' has {len(media)}")
            out[column] = media[:shown]
            if kind == "image":
                sides = {name: row[name] for pair in SIZE_KEYS for name in pair if isinstance(row.get(name), list)}
                out |= {name: side[:shown] for name, side in sides.items() if len(side) == len(media)}
    if isinstance(row.get("objects"), Mapping):
        objects: dict[str, Any] = dict(row["objects"])
        for name, mark in (("ref", "ref-object"), ("bbox", "bbox"), ("image_id", "bbox")):
            if isinstance(objects.get(name), list) and len(objects[name]) == _count(_MARK, whole, mark):
                objects[name] = objects[name][: _count(_MARK, kept, mark)]
        out["objects"] = objects
    return out


def _texts(messages: Sequence[Any]) -> list[str]:
    """Texts of messages; those of typed parts are left out where a part names its own medium."""
    out: list[str] = []
    for message in messages:
        content = message.get("content", message.get("value")) if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else [content]
        for part in cast("list[Any]", parts):
            if isinstance(part, str):
                out.append(part)
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                out.append(part["text"])
            elif isinstance(part, Mapping) and part.get("type") in ("image", "video") and set(part) == {"type"}:
                out.append(f"<{part['type']}>")
    return out


def _count(pattern: re.Pattern[str], texts: Sequence[str], name: str) -> int:
    return sum(pattern.findall(text).count(name) for text in texts)
