"""OCRBench: reading text in pictures, from street signs to handwritten formulas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, file_or_parquet, made, picture, question_row, texts
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, main, read_json

FORMULAS = "HME100k"
"""Part whose answers are compared without white space, letter case counting."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `gt.formula` marks handwritten formulas."""
    for number, item in enumerate(file_or_parquet(root, "OCRBench/OCRBench.json", _repository, f"data/{split}-*.parquet")):
        name = f"ocrbench-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _repository(path: Path) -> Iterator[Record]:
    """The records of the repository with the column names of the Parquet files."""
    for item in read_json(path):
        answers = item["answers"] if isinstance(item["answers"], list) else [item["answers"]]
        yield {**item, "dataset": item["dataset_name"], "question_type": item["type"], "answer": answers}


def _row(name: str, path: str, split: str, item: Record) -> Row:
    image: Embedded | str = picture(item["image"], path) if "image" in item else f"OCRBench_Images/{item['image_path']}"
    row = question_row(
        name,
        task="ocrbench",
        images=[image],
        prompt=item["question"],
        meta={"split": split, "category": item["question_type"], "origin": item["dataset"]},
    )
    row = texts(row, item["answer"])
    return {**row, "gt": {**row["gt"], "formula": True}} if item["dataset"] == FORMULAS else row


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
