"""RoboSpatial-Home: is it so, does it fit (yes or no), and where is free space (points on a mask), in pictures of homes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, choice, image_bytes, made, mask_of, picture, pointing, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

PARTS = ("compatibility", "configuration", "context")
FORM = "Your answer should be formatted"
"""Where the release's sentence about the form of the answer begins."""
ON = 1
"""Least value of a pixel of the mask: the evaluation code takes every pixel that is not 0."""
OPTIONS = ("yes", "no")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `all` is the three parts, named in `meta.category`."""
    for part in PARTS if split == "all" else (split,):
        for number, item in enumerate(records(root, f"data/{part}-*.parquet")):
            name = f"robospatial-{part}-{number:03d}"
            yield made(name, partial(_row, name, f"{part}/{number:03d}", split, item))


def _row(name: str, path: str, split: str, item: Record) -> Row:
    part = item["category"]
    row = question_row(
        name,
        task="robospatial",
        images=[picture(item["img"], path)],
        prompt=item["question"].partition(FORM)[0],
        meta={"split": split, "category": part},
    )
    if part == "context":
        return pointing(row, mask_of(image_bytes(item["mask"]), at_least=ON))
    answer = item["answer"].strip().lower()
    if answer not in OPTIONS:
        raise RowError("bad_value", f"answer {item['answer']!r} is neither yes nor no")
    return choice(row, OPTIONS, OPTIONS.index(answer))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=(*PARTS, "all"))

if __name__ == "__main__":
    main(DATASET)
