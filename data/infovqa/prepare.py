"""InfographicVQA, validation: questions over infographics, with every accepted answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import document_rows, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

ASK = "Answer with a single word or phrase."
"""Ours."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `meta.category` is the first of its `answer_type`."""
    return document_rows(records(root, f"InfographicVQA/{split}-*.parquet"), split, dataset="infovqa", kinds="answer_type", ask=ASK)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("validation",))

if __name__ == "__main__":
    main(DATASET)
