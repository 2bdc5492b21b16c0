"""DocVQA, validation: questions over scanned pages, with every accepted answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import document_rows, file_or_parquet
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, read_json

ASK = "Answer with a single word or phrase."
"""Ours."""
FILES = ("val_v1.0_withQT.json", "val_v1.0.json")
"""Of the challenge's own download; the second has no types of questions."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `meta.category` is the first of its `question_types`."""
    file = next((name for name in FILES if (root / name).is_file()), FILES[0])
    items = file_or_parquet(root, file, lambda path: read_json(path)["data"], f"DocVQA/{split}-*.parquet")
    return document_rows(items, split, dataset="docvqa", kinds="question_types", ask=ASK)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("validation",))

if __name__ == "__main__":
    main(DATASET)
