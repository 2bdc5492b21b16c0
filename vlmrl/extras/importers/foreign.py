"""Makes rows of our own schema of those of other trainers: by the adapter of their shape, or by the `columns` of their source; with several
turns as the source's `turns` says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.data.adapters.base import ADAPTERS, ImportOptions
from vlmrl.data.row import MAX_ID, check_values
from vlmrl.extras.importers.chat import CHAT_KEYS, with_lists
from vlmrl.extras.importers.columns import Mapped
from vlmrl.extras.importers.hints import refuse_kind, unknown_shape
from vlmrl.extras.importers.turns import taken


class ForeignRows:
    """`data.adapters.base.Foreign` of one source."""

    def __init__(self, options: ImportOptions):
        """
        Raises:
            DataError: keys in `columns` that there are not.
        """
        self.options = options
        self.mapped = None if options.columns is None else Mapped(options)

    def opened(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with messages that were JSON text as lists."""
        return with_lists(row, CHAT_KEYS if self.mapped is None else self.mapped.chats)

    def rows(self, row: Mapping[str, Any], shape: str | None, place: int) -> list[object]:
        """What the row is in our schema; each with an id."""
        if self.mapped is None:
            refuse_kind(row)
            if shape is None:
                problem = unknown_shape(row, list(ADAPTERS))
                if problem is not None:
                    raise problem
                return [row]
        check_values(row)
        out: list[object] = []
        for suffix, turn in self._taken(row):
            made = ADAPTERS[str(shape)].convert(turn, self.options) if self.mapped is None else self.mapped.convert(turn)
            name = made["id"] if "id" in made else stable_id(row, place)
            out.append({**made, "id": _numbered(name, suffix)} if suffix or "id" not in made else made)
        return out

    def _taken(self, row: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        if self.mapped is None:
            return taken(row, self.options.turns)
        return taken(row, self.options.turns, chats=self.mapped.chats, answers=self.mapped.columns.get("answer", ()))

    def learned(self) -> tuple[Sequence[str], Sequence[str]]:
        """Mapped columns that no row has had, and columns of rows."""
        return ((), ()) if self.mapped is None else (sorted(self.mapped.unseen), list(self.mapped.known))

    def learn(self, unseen: Sequence[str], known: Sequence[str]) -> None:
        """Take over what another process has `learned`."""
        if self.mapped is not None:
            self.mapped.unseen &= set(unseen)
            self.mapped.known |= dict.fromkeys(known)

    def missing(self) -> str | None:
        """What is wrong with `columns`, once all rows have been read; None if nothing is."""
        return None if self.mapped is None else self.mapped.missing()


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
