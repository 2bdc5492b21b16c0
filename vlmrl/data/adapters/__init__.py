"""Rows of other trainers, read as they are. One adapter per shape; `Importer` chooses it for a file and applies it row by row.

The shape of a file is that of its first row whose keys are known, unless the source names it. Every later row must have the same
one: a file of two shapes is usually two data sets in one file, whose answers do not mean the same.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from vlmrl.data.adapters import easyr1, messages, own, trl, verl, video_r1, vlm_r1
from vlmrl.data.adapters.base import ADAPTERS, Adapter, ImportOptions
from vlmrl.data.row import check_values
from vlmrl.errors import DataError, RowError

OWN = own.name
_OURS: tuple[Adapter, ...] = (own, trl, verl, easyr1, messages, vlm_r1, video_r1)
for _adapter in _OURS:
    ADAPTERS.add(_adapter.name, _adapter)
MIXED = "mixed_shapes"
"""Reason of a row whose shape is not that of its file; `load_source` stops at one."""


def detect(row: object) -> str | None:
    """The name of the shape that a row has by its keys; None if it is none of the known ones."""
    if not isinstance(row, dict):
        return None
    return next((name for name, adapter in ADAPTERS.items() if adapter.detect(row)), None)


class Importer:
    """Converts the rows of one source. `chosen` is the shape, None until a row has told; `first` is the row that did."""

    def __init__(self, options: ImportOptions):
        """
        Raises:
            DataError: the source names an adapter that does not exist.
        """
        problem = None if options.adapter is None else ADAPTERS.problem(options.adapter)
        if problem is not None:
            raise DataError(problem)
        self.options = options
        self.chosen = options.adapter
        self.first: str | None = None

    def convert(self, obj: object, *, where: str, place: int) -> object:
        """A row as our schema has it. `place` is its number within the source, from 1; `where` is `file:line`.

        Rows of unknown shape are given back as they are, for the schema to say what is wrong with them.

        Raises:
            RowError: `mixed_shapes`, or what the adapter found.
        """
        shape = detect(obj)
        if self.chosen is None and shape is not None:
            self.chosen, self.first = shape, where
        if self.chosen is None or not isinstance(obj, dict):
            return obj
        if shape not in (None, self.chosen):
            how = f"as {self.first} is" if self.first is not None else "which the source's 'adapter' says"
            raise RowError(MIXED, f"this row has the shape '{shape}', the file is '{self.chosen}', {how}; split the file by shape")
        if self.chosen == OWN:
            return obj
        check_values(obj)
        row = ADAPTERS[self.chosen].convert(obj, self.options)
        return row if "id" in row else {"id": stable_id(obj, place), **row}

    def note(self) -> str | None:
        """One line on what was detected, for the log; None where nothing was converted or the source named the shape."""
        if self.first is None or self.chosen in (None, OWN):
            return None
        return f"{self.first}: rows of the shape '{self.chosen}' (by their keys); set 'adapter: {self.chosen}' to require it"


def stable_id(row: dict[str, Any], place: int) -> str:
    """An id for a row without one: 16 digits of the hash of its content, and its number in the source.

    The same file gives the same ids on every machine; equal rows of a file get different ones.
    """
    content = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"{hashlib.sha256(content.encode()).hexdigest()[:16]}-{place}"


__all__ = ["ADAPTERS", "MIXED", "OWN", "Adapter", "ImportOptions", "Importer", "detect", "stable_id"]
