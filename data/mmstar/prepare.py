"""MMStar: questions that cannot be answered without the picture: six categories of 250, in three parts each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, inline_choice, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; its text shows the options as `A: ..., B: ...`."""
    for item in records(root, "mmstar.parquet"):
        name = f"mmstar-{split}-{item['index']:04d}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="mmstar",
        images=[picture(item["image"], f"{split}/{item['index']:04d}")],
        prompt=item["question"],
        meta={"split": split, "category": f"{item['category']}/{item['l2_category']}"},
    )
    return inline_choice(row, item["answer"])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("val",))

if __name__ == "__main__":
    main(DATASET)
