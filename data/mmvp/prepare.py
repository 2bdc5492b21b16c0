"""MMVP: one question about two pictures that look alike to CLIP, with opposite answers; a row per picture, pairs in `question_group`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, choice, letter_of, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

CORRECTED = {99: "B", 100: "A", 279: "B", 280: "A"}
"""`Index` -> right option, of the two pairs whose answers were exchanged in the first release (card.md)."""
QUESTIONS = "Questions.csv"
_OPTION = re.compile(r"\([a-z]\)")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Options are one text, `(a) open (b) closed`; `Index` counts from 1, and two neighbours are a pair."""
    for item in _release(root) if (root / QUESTIONS).is_file() else records(root, "data/train-*.parquet"):
        name = f"mmvp-{int(item['Index']):03d}"
        yield made(name, partial(_row, name, split, item))


def _release(root: Path) -> Iterator[Record]:
    """Records of the release itself: a table, and pictures in a folder by their index."""
    with (root / QUESTIONS).open(encoding="utf-8-sig", newline="") as file:
        for item in csv.DictReader(file):
            yield {**item, "image": f"MMVP Images/{item['Index'].strip()}.jpg"}


def _row(name: str, split: str, item: Record) -> Row:
    index, image = int(item["Index"]), item["image"]
    options = [text.strip() for text in _OPTION.split(item["Options"])[1:]]
    if len(options) < 2:
        raise RowError("bad_value", f"options {item['Options']!r} are not written as '(a) ... (b) ...'")
    row = question_row(
        name,
        task="mmvp",
        images=[image if isinstance(image, str) else picture(image, f"{split}/{index:03d}")],
        prompt=item["Question"],
        meta={"split": split, "question_group": f"mmvp-pair-{(index - 1) // 2 + 1:03d}", "corrected": index in CORRECTED},
    )
    return choice(row, options, CORRECTED.get(index, letter_of(item["Correct Answer"])))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
