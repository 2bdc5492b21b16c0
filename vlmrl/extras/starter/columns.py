"""Finds which columns hold question, answer and media, by their names and by what stands in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from vlmrl.errors import ConfigError
from vlmrl.media.access import SUFFIXES
from vlmrl.registry import Catalogue

NAMES: Catalogue[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = Catalogue("names of columns")
"""Our key -> columns that mean it, and columns that do where there is none of these."""
PICTURES = (*SUFFIXES, ".bmp", ".gif", ".tif", ".tiff")
VIDEOS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".ts", ".m4v")
_JOINED = {"instruction": "input", "question": "hint"}
"""Column of a question -> the column that goes on with it."""
_PAIRS = (("start", "end"), ("start_time", "end_time"), ("begin", "end"))
"""Columns that hold a span between them."""
_LETTERS = "ABCDEFGHIJ"
Columns = dict[str, str | tuple[str, ...]]


def mapping(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """`columns` of a source for these rows.

    Raises:
        ConfigError: no column is the question or the answer, or several may be, with what to give.
    """
    names = list(dict.fromkeys(key for row in rows for key in row))
    out: Columns = {}
    chats = [name for name in names if any(_is_chat(row.get(name)) for row in rows)]
    if chats:
        out["messages"] = _one("messages", chats, names, out)
    else:
        out["prompt"] = _one("prompt", _named("prompt", names), names, out)
        more = _spelt(_JOINED.get(out["prompt"].casefold(), ""), names)
        if more is not None:
            out["prompt"] = (out["prompt"], more)
    media = _media(rows, names)
    taken = {column for value in (*out.values(), *media.values()) for column in ((value,) if isinstance(value, str) else value)}
    answers = [name for name in _named("answer", names) if name not in taken]
    if answers or "messages" not in out:
        out["answer"] = _one("answer", _unlike(answers, rows), names, out | media)
    out |= media
    options = _named("options", names)
    letters = [letter for letter in _LETTERS if letter in names]
    if options:
        out["options"] = _one("options", options, names, out)
    elif letters[:2] == ["A", "B"]:
        out["options"] = tuple(letters)
    for name in _named("id", names):
        ids = [row.get(name) for row in rows]
        if all(isinstance(one, str | int) and str(one).strip() for one in ids) and len(set(map(str, ids))) == len(ids):
            out["id"] = name
            break
    return out


def told(columns: Mapping[str, str | Sequence[str]]) -> str:
    """The mapping as a recipe writes it."""
    values = {key: value if isinstance(value, str) else f"[{', '.join(map(_plain, value))}]" for key, value in columns.items()}
    return "{" + ", ".join(f"{key}: {_plain(text) if isinstance(columns[key], str) else text}" for key, text in values.items()) + "}"


def _plain(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*|\?", text) and text not in ("true", "false", "null", "yes", "no") else f'"{text}"'


def _spelt(name: str, names: Sequence[str]) -> str | None:
    """The column of that name, whatever its case."""
    return next((one for one in names if one.casefold() == name), None)


def _named(key: str, names: Sequence[str]) -> list[str]:
    """Columns that are called as this key usually is; those that are less sure only where there is no other."""
    for usual in NAMES["usual"][key]:
        found = [one for one in (_spelt(name, names) for name in usual) if one is not None]
        if found:
            return found
    return []


def _unlike(candidates: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Candidates that say different things: a column that only repeats an earlier one is none."""
    out: list[str] = []
    for name in candidates:
        if not any(all(row.get(name) == row.get(other) for row in rows) for other in out):
            out.append(name)
    return out


def _one(key: str, candidates: Sequence[str], names: Sequence[str], known: Mapping[str, str | tuple[str, ...]]) -> str:
    """The one candidate.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if len(candidates) == 1:
        return candidates[0]
    what = {"prompt": "the question", "answer": "the gold answer"}.get(key, f"'{key}'")

    def given(column: str) -> str:
        full = {**known, key: column}
        full.setdefault("prompt" if "messages" not in full else "messages", "?")
        order = ("prompt", "messages", "answer", "images", "videos")
        return f"--columns '{told({one: full[one] for one in order if one in full} | ({'answer': '?'} if 'answer' not in full else {}))}'"

    pair = next((pair for pair in _PAIRS if set(pair) <= set(names)), None)
    if not candidates and key == "answer" and pair is not None:
        raise ConfigError(f"'{pair[0]}' and '{pair[1]}' are two columns; write them into one, as [{pair[0]}, {pair[1]}], for spans of time")
    if not candidates:
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise ConfigError(f"no column of the rows looks like {what}; they have {listed}; say which it is: {given('?')}")
    lines = "".join(f"\n  {given(column)}" for column in candidates)
    raise ConfigError(f"{what} may stand in {' or '.join(repr(name) for name in candidates)}; say which:{lines}")


def _media(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Columns:
    """The columns of pictures and videos: by name and content, or by content alone."""
    out: Columns = {}
    for key, endings in (("images", PICTURES), ("videos", VIDEOS)):
        holding = [name for name in names if _holds(rows, name, endings)]
        called = [name for name in _named(key, names) if name in holding]
        if len(called) > 1:
            # Bytes beside the name of a file are the picture.
            inside = [name for name in called if any(_inside(row.get(name)) for row in rows)]
            called = inside if len(inside) == 1 else called
        if called or holding:
            out[key] = _one(key, called or holding, names, {})
    if not out:
        _nameless(rows, names)
    return out


def _nameless(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: a column is called as one of media is, and holds no names of files.
    """
    for name in (*_named("images", names), *_named("videos", names)):
        value = next((row[name] for row in rows if row.get(name) not in (None, "", [])), None)
        if value is not None:
            raise ConfigError(
                f"'{name}' holds {str(value)[:60]!r}, which is no file name of a picture or video; write the names with their endings, as "
                "'a.png' or 'a.mp4', or name the column of the media with --columns"
            )


def _holds(rows: Sequence[Mapping[str, Any]], name: str, endings: Sequence[str]) -> bool:
    """Whether a column holds paths with one of the endings, in most of the rows that have it."""
    values = [row[name] for row in rows if row.get(name) not in (None, "", [])]
    return bool(values) and sum(_is_media(value, tuple(endings)) for value in values) > len(values) / 2


def _is_media(value: Any, endings: tuple[str, ...]) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_media(one, endings) for one in cast("list[Any]", value))
    if isinstance(value, Mapping):
        return _is_media(value.get("path"), endings)
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("[") and text.endswith("]"):
        text = text.strip("[]'\" ")
    return text.lower().endswith(endings) and "\n" not in text and len(text) < 1000


def _inside(value: Any) -> bool:
    """Whether the content stood in the row: it has been written to a file then, whose hash is beside its path."""
    if isinstance(value, list):
        return any(_inside(one) for one in cast("list[Any]", value))
    return isinstance(value, Mapping) and "sha256" in value


def _is_chat(value: Any) -> bool:
    """A list of messages in either spelling."""
    messages = cast("list[Any]", value) if isinstance(value, list) else []
    keys = [set(cast("Mapping[str, Any]", one)) if isinstance(one, Mapping) else set[str]() for one in messages]
    return bool(keys) and all({"role", "content"} <= one or {"from", "value"} <= one for one in keys)
