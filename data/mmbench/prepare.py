"""MMBench, English: multiple choice with the rotations of circular evaluation, as the release lists them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, choice, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

TURN = 1_000_000
"""A question and its rotations have the same `index` modulo this."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question and rotation; `meta.question_group` is the question."""
    for item in records(root, f"en/{split}-*.parquet"):
        name = f"mmbench-{split}-{int(item['index']):08d}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    index = int(item["index"])
    options = [item[letter] for letter in "ABCD" if _given(item[letter])]
    hint = f"{item['hint']}\n" if _given(item["hint"]) else ""
    row = question_row(
        name,
        task="mmbench",
        images=[picture(item["image"], f"{split}/{index:08d}")],
        prompt=hint + item["question"],
        meta={
            "split": split,
            "category": item["category"],
            "ability": item["L2-category"],
            "question_group": f"mmbench-{split}-{index % TURN:08d}",
            "rotation": index // TURN,
        },
    )
    return choice(row, options, item["answer"])


def _given(text: str | None) -> bool:
    """Whether a cell is filled: empty ones are null, or the text `nan`."""
    return text is not None and text.strip() not in ("", "nan")


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("dev",))

if __name__ == "__main__":
    main(DATASET)
