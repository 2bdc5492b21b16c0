"""Rows of no known shape, read by a mapping of our keys to their columns: `columns: {prompt: question, answer: output, images: img}`.

    prompt: question                     one column; `extra.text` reaches into an object, `captions.0.text` into a list
    prompt: [instruction, input]         several: texts are joined with a line break, empty ones left out
    options: [A, B, C, D]                the options in this order, empty ones left out; or one column that holds a list
    images: [first_view, second_view]    several pictures; `videos` alike
    prompt: "=Describe the picture."     the same text for every row
    meta.category: type                  kept under another name

Columns that are not mapped go to `meta` under their own names. Everything else is as for rows of other trainers (`adapters.build`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from vlmrl.config.section import column_problem
from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.build import build
from vlmrl.extras.importers.chat import Chat, from_text, merged, read_chat, read_prompt
from vlmrl.extras.importers.fields import Found, id_of, is_pictures, optional_text
from vlmrl.registry import nearest

name = "columns"
_ABSENT = object()


class Mapped:
    """Converts the rows of one source by its `columns`, and remembers which columns were there at all."""

    def __init__(self, options: ImportOptions):
        """
        Raises:
            DataError: a key or a combination of keys that `columns` cannot have.
        """
        problem = column_problem(options.columns or {})
        if problem is not None:
            raise DataError(f"columns: {problem}")
        self.columns = {
            "prompt" if key == "question" else key: (value,) if isinstance(value, str) else tuple(value)
            for key, value in (options.columns or {}).items()
        }
        self.options = options
        self.chats = [self.columns[key][0] for key in ("messages", "prompt") if len(self.columns.get(key, ())) == 1]
        """Columns that may hold messages."""
        if options.turns in ("first", "split") and any("." in column for column in self.chats if not column.startswith("=")):
            raise DataError(f"columns: 'turns: {options.turns}' cuts messages in a column of their own, not at '{self.chats[0]}'")
        self.unseen = {column for columns in self.columns.values() for column in columns if not column.startswith("=")}
        self.known: dict[str, None] = {}
        """Columns of the rows, for messages."""

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of our schema, without `id` where no column gives one.

        Raises:
            RowError: naming our key and the column at fault.
        """
        if self.unseen or not self.known:
            self.known |= dict.fromkeys(row)
        chat = self._chat(row)
        answer = self._one(row, "answer")
        if chat.answer is not None and answer is not None:
            raise RowError("turns", f"the messages have an answer, and {self._told('answer')} is one too; map one")
        used = {column.split(".")[0] if column not in row else column for columns in self.columns.values() for column in columns}
        meta = {key: value for key, value in row.items() if key not in used and value is not None}
        for key in self.columns:
            value = self._one(row, key) if key.startswith("meta.") else None
            if value is not None:
                meta[key.removeprefix("meta.")] = value
        texts = {key: optional_text({key: self._one(row, key)}, key) for key in ("thought", "task", "answer_type", "system", "source")}
        identity = id_of({"id": self._one(row, "id")}, "id")
        return build(
            Found(
                question=chat.question,
                history=chat.history,
                answer=chat.answer if answer is None else answer,
                images=merged(chat.images, self._media(row, "image"), "image"),
                videos=merged(chat.videos, self._media(row, "video"), "video"),
                answer_type=texts["answer_type"],
                task=texts["task"],
                id=identity,
                options=self._choices(row),
                system=texts["system"] or chat.system,
                thought=texts["thought"],
                data_type=optional_text({"data_type": self._one(row, "data_type")}, "data_type"),
                source=texts["source"],
                meta=meta,
            ),
            self.options,
        )

    def missing(self) -> str | None:
        """What to say of mapped columns that no row had; None where all were there."""
        if not self.unseen or not self.known:
            return None
        first = sorted(self.unseen)[0]
        key = next(key for key, columns in self.columns.items() if first in columns)
        guess = nearest(first, list(self.known))
        return f"columns: no row has the column '{first}' (mapped to '{key}'){guess}; they have {_listed(self.known)}"

    def _chat(self, row: Mapping[str, Any]) -> Chat:
        several = self.options.turns is not None
        if "messages" in self.columns:
            value = self._one(row, "messages")
            if value is None:
                raise RowError("missing_key", f"{self._told('messages')} is missing")
            return read_chat(from_text(value, self._name("messages")), self._name("messages"), several=several)
        parts = [part for part in self._all(row, "prompt") if part is not None]
        if not parts:
            raise RowError("missing_key", f"{self._told('prompt')} is missing")
        if len(parts) == 1 and isinstance(parts[0], list | str):
            return read_prompt(from_text(parts[0], self._name("prompt")), self._name("prompt"), several=several)
        texts = [str(part).strip() for part in parts if isinstance(part, str | int | float)]
        if len(texts) < len(parts):
            raise RowError("bad_type", f"{self._told('prompt')} must hold texts")
        return Chat(question="\n".join(text for text in texts if text))

    def _media(self, row: Mapping[str, Any], kind: str) -> list[object]:
        out: list[object] = []
        for key in (kind, f"{kind}s"):
            for value in self._all(row, key) if key in self.columns else ():
                listed = _list_of_text(value)
                if kind == "video" and is_pictures(listed):
                    listed = [listed]
                out += listed if isinstance(listed, list) else [] if listed is None else [listed]
        return out

    def _choices(self, row: Mapping[str, Any]) -> list[str]:
        if "options" not in self.columns:
            return []
        values = self._all(row, "options")
        value: object = _list_of_text(values[0]) if len(values) == 1 else values
        if isinstance(value, Mapping):  # {"A": "a cat", "B": "a dog"}
            value = list(value.values())
        given = cast("list[object]", value) if isinstance(value, list) else [value]
        out = [str(one).strip() for one in given if isinstance(one, str | int | float) and str(one).strip()]
        if len(out) < sum(one is not None and one != "" for one in given):
            raise RowError("bad_type", f"{self._told('options')} must hold a list of texts")
        return out

    def _one(self, row: Mapping[str, Any], key: str) -> Any:
        return self._all(row, key)[0] if key in self.columns else None

    def _all(self, row: Mapping[str, Any], key: str) -> list[Any]:
        """Values of the columns of a key in order; None for one that the row lacks."""
        out: list[Any] = []
        for column in self.columns[key]:
            value = column[1:] if column.startswith("=") else _at(row, column)
            if value is not _ABSENT:
                self.unseen.discard(column)
            out.append(None if value is _ABSENT else value)
        return out

    def _name(self, key: str) -> str:
        return ", ".join(self.columns[key])

    def _told(self, key: str) -> str:
        return f"'{self._name(key)}' (mapped to '{key}')"


def _at(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or at a dotted path; `_ABSENT` where there is none."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 8 and int(part) < len(cast("list[Any]", value)):
            value = value[int(part)]
        else:
            return _ABSENT
    return value


def _list_of_text(value: Any) -> Any:
    """A list that a cell of a table holds as JSON text; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("[") and value.count("[") < 64:
        try:
            found = json.loads(value)
        except ValueError:
            return value
        return found if isinstance(found, list) else value
    return value


def _listed(names: Mapping[str, None]) -> str:
    shown = [str(name)[:40] for name in list(names)[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
