"""ChartQA: questions over charts, written by people or by a program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.prepare.hf_rows import Record, made, picture, question_row, records, texts
from vlmrl.prepare.prepare import Dataset, Row, Skipped, main

ASK = "Answer with a single word or number."
"""Ours."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `meta.category` is `human` or `augmented`."""
    for number, item in enumerate(records(root, f"data/{split}-*.parquet")):
        name = f"chartqa-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _row(name: str, path: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="chartqa",
        images=[picture(item["image"], path)],
        prompt=f"{item['question'].strip()} {ASK}",
        meta={"split": split, "category": item["type"].removesuffix(f"_{split}")},
    )
    return texts(row, [item["answer"]])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
