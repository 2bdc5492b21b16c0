"""OneThinker-600k: the rows for reinforcement learning, of questions, grounding, tracking and segmentation. One row per record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.json_array import elements
from vlmrl.data.prepare import Dataset, Row, Skipped, main, official, read_jsonl
from vlmrl.errors import RowError

FILES = {"rl": "onethinker_rl_train"}
OPTIONS = ImportOptions(adapter="video_r1", frame="norm1000", time_unit="s")
"""Coordinates from 0 to 1000 along each side, and seconds: as the code of the release reads and asks for them."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """What the adapter `video_r1` makes of each record; a record that it refuses is left out with its reason."""
    path = official(root, f"{FILES[split]}.json", f"{FILES[split]}.jsonl")
    importer = Importer(OPTIONS)
    for place, (line, record) in enumerate(_records(path), start=1):
        # Nothing says that `problem_id` occurs once, so rows are named by their place; what the adapter takes for the id stays in meta.
        name = f"onethinker-{split}-{place:06d}"
        try:
            row = importer.convert(record, where=f"{path.name}:{line}", place=place)
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


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=tuple(FILES))

if __name__ == "__main__":
    main(DATASET)
