"""MMVP: one question about two pictures that look alike to CLIP, with opposite answers; a row per picture, pairs in `question_group`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.prepare.hf_rows import Record, choice, letter_of, made, picture, question_row, records
from vlmrl.prepare.prepare import Dataset, Row, Skipped, main

CORRECTED = {99: "B", 100: "A", 279: "B", 280: "A"}
"""`Index` -> right option, of the two pairs whose answers were exchanged in the first release (card.md)."""
_OPTION = re.compile(r"\([a-z]\)")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Options are one text, `(a) open (b) closed`; `Index` counts from 1, and two neighbours are a pair."""
    for item in records(root, "data/train-*.parquet"):
        name = f"mmvp-{item['Index']:03d}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    index = item["Index"]
    options = [text.strip() for text in _OPTION.split(item["Options"])[1:]]
    if len(options) < 2:
        raise RowError("bad_value", f"options {item['Options']!r} are not written as '(a) ... (b) ...'")
    row = question_row(
        name,
        task="mmvp",
        images=[picture(item["image"], f"{split}/{index:03d}")],
        prompt=item["Question"],
        meta={"split": split, "question_group": f"mmvp-pair-{(index - 1) // 2 + 1:03d}", "corrected": index in CORRECTED},
    )
    return choice(row, options, CORRECTED.get(index, letter_of(item["Correct Answer"])))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
