"""OneThinker-600k: the rows for reinforcement learning, of questions, grounding, tracking and segmentation. One row per record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.data.adapters import ImportOptions
from vlmrl.extras.importers.prepare.foreign_rows import foreign_rows
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

FILES = {"rl": "onethinker_rl_train"}
OPTIONS = ImportOptions(adapter="video_r1", frame="norm1000", time_unit="s")
"""Coordinates from 0 to 1000 along each side, and seconds: as the code of the release reads and asks for them."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """What the adapter `video_r1` makes of each record; a record that it refuses is left out with its reason."""
    return foreign_rows(root, FILES[split], split, dataset="onethinker", options=OPTIONS)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=tuple(FILES))

if __name__ == "__main__":
    main(DATASET)
