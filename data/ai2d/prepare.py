"""AI2D: multiple choice over diagrams of school science."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, choice, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `answer` of the file is an index from 0, as text."""
    for number, item in enumerate(records(root, f"data/{split}-*.parquet")):
        name = f"ai2d-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _row(name: str, path: str, split: str, item: Record) -> Row:
    row = question_row(name, task="ai2d", images=[picture(item["image"], path)], prompt=item["question"], meta={"split": split})
    return choice(row, item["options"], int(item["answer"]))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
