"""RefSpatial-Bench: point at what a sentence of several steps refers to; the points are right that lie on a mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, image_bytes, made, mask_of, picture, pointing, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

PARTS = ("location", "placement", "unseen")
FORM = "Your answer should be formatted"
"""Where the release's sentence about the form of the answer begins; what stands before it in `suffix` belongs to the question."""
ON = 1
"""Least value of a pixel of the mask: Evaluation/summarize_acc.py of the authors (Zhoues/RoboRefer) takes every pixel above 0."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per sentence; `all` is the three parts, named in `meta.category`."""
    for part in PARTS if split == "all" else (split,):
        for item in records(root, f"data/{part}-*.parquet"):
            name = f"refspatial-{part}-{item['id']}"
            yield made(name, partial(_row, name, split, part, item))


def _row(name: str, split: str, part: str, item: Record) -> Row:
    row = question_row(
        name,
        task="refspatial",
        images=[picture(item["image"], f"{part}/{item['id']}")],
        prompt=f"{item['prompt']} {item['suffix'].partition(FORM)[0]}",
        meta={"split": split, "category": part, "steps": item["step"], "object": item["object"]},
    )
    return pointing(row, mask_of(image_bytes(item["mask"]), at_least=ON))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=(*PARTS, "all"))

if __name__ == "__main__":
    main(DATASET)
