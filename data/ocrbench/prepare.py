"""OCRBench: reading text in pictures, from street signs to handwritten formulas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.prepare.hf_rows import Record, made, picture, question_row, records, texts
from vlmrl.prepare.prepare import Dataset, Row, Skipped, main

FORMULAS = "HME100k"
"""Part whose answers are compared without white space, letter case counting."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `gt.formula` marks handwritten formulas."""
    for number, item in enumerate(records(root, f"data/{split}-*.parquet")):
        name = f"ocrbench-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _row(name: str, path: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="ocrbench",
        images=[picture(item["image"], path)],
        prompt=item["question"],
        meta={"split": split, "category": item["question_type"], "origin": item["dataset"]},
    )
    row = texts(row, item["answer"])
    return {**row, "gt": {**row["gt"], "formula": True}} if item["dataset"] == FORMULAS else row


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
