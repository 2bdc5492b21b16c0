"""Conversations of one question and one answer with its thought, as LLaMA-Factory and ms-swift keep them. One row per conversation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.data.adapters import ImportOptions
from vlmrl.extras.importers.prepare.foreign_rows import foreign_rows
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main

SPLITS = ("train", "onethinker_sft_image", "onethinker_sft_video", "vision_r1_mulberry_sft_full")
"""Names of files: any, under the name `train`, and those of public releases."""
TYPES = ("exact_text", "choice", "number", "math", "short_text")


def rows(root: Path, split: str, *, answer_type: str) -> Iterator[Row | Skipped]:
    """What the adapter `messages` makes of each record; a record that it refuses is left out with its reason."""
    options = ImportOptions(adapter="messages", answer_type=answer_type)
    return foreign_rows(root, split, split, dataset="sharegpt_thoughts", options=options)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=SPLITS, options={"answer_type": TYPES})

if __name__ == "__main__":
    main(DATASET)
