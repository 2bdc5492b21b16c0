"""Conversations of one question and one answer with its thought, as LLaMA-Factory and ms-swift keep them. One row per conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.json_array import elements
from vlmrl.data.prepare import Dataset, Row, Skipped, main, official, read_jsonl
from vlmrl.errors import RowError

SPLITS = ("train", "onethinker_sft_image", "onethinker_sft_video", "vision_r1_mulberry_sft_full")
"""Names of files: any, under the name `train`, and those of public releases."""
TYPES = ("open", "choice", "number", "math", "ocr")


def rows(root: Path, split: str, *, answer_type: str) -> Iterator[Row | Skipped]:
    """What the adapter `messages` makes of each record; a record that it refuses is left out with its reason."""
    path = official(root, f"{split}.json", f"{split}.jsonl")
    importer = Importer(ImportOptions(adapter="messages", answer_type=answer_type))
    for place, (line, record) in enumerate(_records(path), start=1):
        name = f"sharegpt_thoughts-{split}-{place:06d}"
        try:
            row = importer.convert(record, where=f"{path.name}:{line}", place=place)
        except RowError as error:
            yield Skipped(name, f"not a valid row: {error}")
            continue
        if isinstance(row, dict):
            yield {**row, "id": name, "meta": {**row.get("meta", {}), "split": split, "imported_id": row["id"]}}
        else:
            yield Skipped(name, f"not a valid row: not_object: a record must be a JSON object, got {type(row).__name__}")


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, value) of each element of a JSON list, or of each line of JSONL."""
    if path.suffix == ".jsonl":
        yield from read_jsonl(path)
        return
    for line, text in elements(path):
        yield line, json.loads(text)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=SPLITS, options={"answer_type": TYPES})

if __name__ == "__main__":
    main(DATASET)
