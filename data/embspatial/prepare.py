"""EmbSpatial-Bench: spatial relations of objects as an embodied agent sees them, in rooms of three sources."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, choice, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `answer` of the file is an index from 0."""
    for item in records(root, "data/test-*.parquet", "test-*.parquet"):
        name = f"embspatial-{item['question_id']}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="embspatial",
        images=[picture(item["image"], f"{split}/{item['question_id']}")],
        prompt=item["question"],
        meta={"split": split, "category": item["relation"], "origin": item["data_source"]},
    )
    return choice(row, item["answer_options"], item["answer"])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
