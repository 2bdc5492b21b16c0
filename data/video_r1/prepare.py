"""Video-R1: questions on videos and pictures, with answers to learn from by reward (`rl`) or with thoughts (`cot`). One row per record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.data.adapters import ImportOptions
from vlmrl.extras.importers.prepare.foreign_rows import foreign_rows
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

FILES = {"rl": "Video-R1-260k", "cot": "Video-R1-COT-165k"}


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """What the adapter `video_r1` makes of each record; a record that it refuses is left out with its reason."""
    return foreign_rows(root, FILES[split], split, dataset="video_r1", options=ImportOptions(adapter="video_r1"))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=tuple(FILES))

if __name__ == "__main__":
    main(DATASET)
