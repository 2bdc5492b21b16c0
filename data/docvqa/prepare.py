"""DocVQA, validation: questions over scanned pages, with every accepted answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.data.hf_rows import Record, made, picture, question_row, records, texts
from vlmrl.data.prepare import Dataset, Row, Skipped, main

ASK = "Answer with a single word or phrase."
"""Ours."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `meta.category` is the first of its `question_types`."""
    for item in records(root, f"DocVQA/{split}-*.parquet"):
        name = f"docvqa-{split}-{item['questionId']}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    kinds = item["question_types"] or ["other"]
    row = question_row(
        name,
        task="docvqa",
        images=[picture(item["image"], f"{split}/{item['questionId']}")],
        prompt=f"{item['question'].strip()} {ASK}",
        meta={"split": split, "category": kinds[0]},
    )
    return texts(row, item["answers"])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("validation",))

if __name__ == "__main__":
    main(DATASET)
