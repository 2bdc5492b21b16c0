"""Rows of other trainers, read as they are. One adapter per shape; `Importer` chooses it for a file and applies it row by row.

The shape of a file is that of its first row whose keys are known, unless the source names it. Every later row must have the same
one: a file of two shapes is usually two data sets in one file, whose answers do not mean the same. Rows of any other shape are read
by a mapping of their columns (`adapters.columns`); rows with several turns as `turns` says (`adapters.turns`). What rows of our own
schema do not need is imported with the first row of another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmrl.data.adapters.base import ADAPTERS, OWN, Adapter, ImportOptions
from vlmrl.data.row import MAX_ID, MIXED, check_values
from vlmrl.errors import DataError, RowError
from vlmrl.registry import load

if TYPE_CHECKING:
    from vlmrl.data.adapters.columns import Mapped


def detect(row: object) -> str | None:
    """The name of the shape that a row has by its keys; None if it is none of the known ones."""
    if not isinstance(row, dict):
        return None
    return next((name for name, adapter in ADAPTERS.items() if adapter.detect(row)), None)


class Learned(NamedTuple):
    """What an `Importer` knows of a source from its rows; JSON values."""

    chosen: str | None
    first: str | None
    unseen: Sequence[str]
    """Mapped columns that no row has had."""
    known: Sequence[str]
    """Columns of rows."""


class Importer:
    """Converts the rows of one source. `chosen` is the shape, None until a row has told; `first` is the row that did."""

    def __init__(self, options: ImportOptions):
        """
        Raises:
            DataError: the source names an adapter that does not exist, or keys in `columns` that there are not.
        """
        problem = None if options.adapter is None else ADAPTERS.problem(options.adapter)
        if problem is not None:
            raise DataError(problem)
        self.options = options
        self.chosen = options.adapter
        self.first: str | None = None
        self.mapped: Mapped | None = None if options.columns is None else load("vlmrl.data.adapters.columns:Mapped")(options)

    def opened(self, obj: object) -> object:
        """A row as it is to be looked at: messages that are JSON text become lists. To be called before `rows`.

        Raises:
            RowError: `json`: text that begins like a list of messages and is no JSON.
        """
        if not isinstance(obj, dict):
            return obj
        if self.mapped is None and "answer_type" in obj:
            return obj
        from vlmrl.data.adapters.chat import with_lists

        return with_lists(obj) if self.mapped is None else with_lists(obj, self.mapped.chats)

    def rows(self, obj: object, *, where: str, place: int) -> list[object]:
        """What a row is in our schema: one row, or with `turns: split` one for each answer. `place` is its number within the source,
        from 1; `where` is `file:line`.

        Raises:
            RowError: `unknown_shape`, `mixed_shapes`, or what the adapter found.
        """
        obj = self.opened(obj)
        if not isinstance(obj, dict):
            return [obj]
        if self.mapped is None:
            shape = detect(obj)
            if self.chosen is None and shape is not None:
                self.chosen, self.first = shape, where
            if shape not in (None, self.chosen):
                how = f"as {self.first} is" if self.first is not None else "which the source's 'adapter' says"
                raise RowError(MIXED, f"this row has the shape '{shape}', the file is '{self.chosen}', {how}; split the file by shape")
            if self.chosen == OWN:
                return [obj]
            from vlmrl.data.adapters.hints import refuse_kind, unknown_shape

            refuse_kind(obj)
            if self.chosen is None:
                problem = unknown_shape(obj, list(ADAPTERS))
                if problem is not None:
                    raise problem
                return [obj]
        check_values(obj)
        out: list[object] = []
        for suffix, turn in self._taken(obj):
            row = ADAPTERS[self.chosen or OWN].convert(turn, self.options) if self.mapped is None else self.mapped.convert(turn)
            name = row["id"] if "id" in row else stable_id(obj, place)
            out.append({**row, "id": _numbered(name, suffix)} if suffix or "id" not in row else row)
        return out

    def _taken(self, row: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        from vlmrl.data.adapters.turns import taken

        if self.mapped is None:
            return taken(row, self.options.turns)
        return taken(row, self.options.turns, chats=self.mapped.chats, answers=self.mapped.columns.get("answer", ()))

    def learned(self) -> Learned:
        """What the rows so far have told, for another process that reads those after them."""
        unseen, known = ((), ()) if self.mapped is None else (sorted(self.mapped.unseen), list(self.mapped.known))
        return Learned(self.chosen, self.first, unseen, known)

    def learn(self, told: Learned) -> None:
        """Take over what another process has learned of rows of the same source."""
        self.chosen, self.first = told.chosen, told.first
        if self.mapped is not None:
            self.mapped.unseen &= set(told.unseen)
            self.mapped.known |= dict.fromkeys(told.known)

    def missing(self) -> str | None:
        """What is wrong with `columns`, once all rows have been read; None if nothing is."""
        return None if self.mapped is None else self.mapped.missing()

    def note(self) -> str | None:
        """One line on what was detected, for the log; None where nothing was converted or the source named the shape."""
        if self.first is None or self.chosen in (None, OWN):
            return None
        return f"{self.first}: rows of the shape '{self.chosen}' (by their keys); set 'adapter: {self.chosen}' to require it"


def stable_id(row: Mapping[str, Any], place: int) -> str:
    """An id for a row without one: 16 digits of the hash of its content, and its number in the source.

    The same file gives the same ids on every machine; equal rows of a file get different ones.
    """
    content = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"{hashlib.sha256(content.encode()).hexdigest()[:16]}-{place}"


def _numbered(name: str, suffix: str) -> str:
    """An id with the number of its turn; a very long one gives way to its hash, so that the result can be an id."""
    if len(name) <= MAX_ID < len(name) + len(suffix):
        name = f"{name[:200]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return name + suffix


__all__ = ["ADAPTERS", "MIXED", "OWN", "Adapter", "ImportOptions", "Importer", "Learned", "detect", "stable_id"]
