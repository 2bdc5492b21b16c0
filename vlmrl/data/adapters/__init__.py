"""Rows in the shape of their file. One adapter per shape; `Importer` chooses it for a file and applies it row by row.

The shape of a file is that of its first row whose keys are known, unless the source names it. Every later row must have the same
one: a file of two shapes is usually two data sets in one file, whose answers do not mean the same. Rows of our own schema are taken as they
are; what reads those of another is asked for with the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vlmrl.data.adapters.base import ADAPTERS, FOREIGN, OWN, Adapter, Foreign, ImportOptions
from vlmrl.data.row import MIXED
from vlmrl.errors import DataError, RowError


def detect(row: object) -> str | None:
    """Name the shape of a row by its keys; None if it is none of the known ones."""
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
        self._by_columns = options.columns is not None
        self._foreign: Foreign | None = FOREIGN["rows"](options) if self._by_columns else None

    def opened(self, obj: object) -> object:
        """Parse messages that are JSON text into lists. `rows` does so too; what looks for media in a row needs it earlier.

        Raises:
            RowError: `json`: text that begins like a list of messages and is no JSON.
        """
        # a row of our own schema: JSON text in its prompt is refused by `data.row`, which says why
        if not isinstance(obj, dict) or (not self._by_columns and "answer_type" in obj):
            return obj
        return self._other().opened(obj)

    def rows(self, obj: object, *, where: str, place: int) -> list[object]:
        """Convert a row to our schema.

        Args:
            where: `file:line` of the row.
            place: its number within the source, from 1.

        Returns:
            One row, or with `turns: split` one for each answer.

        Raises:
            RowError: `unknown_shape`, `mixed_shapes`, or what the adapter found.
        """
        obj = self.opened(obj)
        if not isinstance(obj, dict):
            return [obj]
        if not self._by_columns:
            shape = detect(obj)
            if self.chosen is None and shape is not None:
                self.chosen, self.first = shape, where
            # a row of no known shape is read as the others of its file; their adapter or the schema says what it lacks
            if shape not in (None, self.chosen):
                how = f"as {self.first} is" if self.first is not None else "which the source's 'adapter' says"
                raise RowError(MIXED, f"this row has the shape '{shape}', the file is '{self.chosen}', {how}; split the file by shape")
            if self.chosen == OWN:
                return [obj]
        return self._other().rows(obj, self.chosen, place)

    def _other(self) -> Foreign:
        if self._foreign is None:
            self._foreign = FOREIGN["rows"](self.options)
        return self._foreign

    def learned(self) -> Learned:
        """Collect what the rows so far have told, for another process that reads those after them."""
        return Learned(self.chosen, self.first, *(((), ()) if self._foreign is None else self._foreign.learned()))

    def learn(self, told: Learned) -> None:
        """Take over what another process has learned of rows of the same source."""
        self.chosen, self.first = told.chosen, told.first
        if self._foreign is not None:
            self._foreign.learn(told.unseen, told.known)

    def missing(self) -> str | None:
        """Describe what is wrong with `columns`, once all rows have been read; None if nothing is."""
        return None if self._foreign is None else self._foreign.missing()

    def note(self) -> str | None:
        """Describe in one line what was detected, for the log; None where nothing was converted or the source named the shape."""
        if self.first is None or self.chosen in (None, OWN):
            return None
        return f"{self.first}: rows of the shape '{self.chosen}' (by their keys); set 'adapter: {self.chosen}' to require it"


__all__ = ["ADAPTERS", "MIXED", "OWN", "Adapter", "ImportOptions", "Importer", "Learned", "detect"]
