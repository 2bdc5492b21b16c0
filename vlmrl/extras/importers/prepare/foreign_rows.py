"""Shared by preparation scripts whose records are rows of other trainers: the adapters convert them, as in a source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.json_array import elements
from vlmrl.extras.importers.prepare.prepare import Row, Skipped, official, read_jsonl


def foreign_rows(root: Path, file: str, split: str, *, dataset: str, options: ImportOptions) -> Iterator[Row | Skipped]:
    """What the adapter makes of each record of `<root>/<file>.json` (one list) or `.jsonl`; a record that it refuses is left out with its
    reason.

    Nothing says that the records' own ids occur once, so rows are named by their place; what the adapter takes for the id is
    `meta.imported_id`.

    Raises:
        DataError: neither file is there, or it is not what its suffix says.
    """
    path = official(root, f"{file}.json", f"{file}.jsonl")
    importer = Importer(options)
    for place, (line, record) in enumerate(_records(path), start=1):
        name = f"{dataset}-{split}-{place:06d}"
        try:
            (row,) = importer.rows(record, where=f"{path.name}:{line}", place=place)
        except RowError as error:
            yield Skipped(name, f"not a valid row: {error}")
            continue
        if isinstance(row, dict):
            yield {**row, "id": name, "meta": {**row.get("meta", {}), "split": split, "imported_id": row["id"]}}
        else:
            yield Skipped(name, f"not a valid row: not_object: a record must be a JSON object, got {type(row).__name__}")


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, value) of each element of a JSON list, or of each line of JSONL."""
    if path.suffix == ".jsonl":
        yield from read_jsonl(path)
        return
    for line, text in elements(path):
        yield line, json.loads(text)
