"""DocVQA, validation: questions over scanned pages, with every accepted answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.prepare.hf_rows import document_rows
from vlmrl.prepare.prepare import Dataset, Row, Skipped, main

ASK = "Answer with a single word or phrase."
"""Ours."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `meta.category` is the first of its `question_types`."""
    return document_rows(root, split, folder="DocVQA", dataset="docvqa", kinds="question_types", ask=ASK)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("validation",))

if __name__ == "__main__":
    main(DATASET)
