"""CV-Bench: counting and relation in the plane (2D), depth and distance (3D), from the Parquet files of its page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, inline_choice, letter_of, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `prompt` of the file already shows its options as `(A) ...`."""
    for item in records(root, f"test_{split}.parquet"):
        name = f"cv_bench-{split}-{item['idx']}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="cv_bench",
        images=[picture(item["image"], f"{split}/{item['idx']}")],
        prompt=item["prompt"],
        meta={"split": split, "category": item["task"], "origin": item["source"]},
    )
    if ord(letter_of(item["answer"])) - ord("A") >= len(item["choices"]):
        raise RowError("bad_value", f"answer {item['answer']!r} is the letter of none of the {len(item['choices'])} choices")
    return inline_choice(row, item["answer"])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("2d", "3d"))

if __name__ == "__main__":
    main(DATASET)
