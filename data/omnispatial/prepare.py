"""OmniSpatial: four kinds of spatial reasoning over one picture, from `OmniSpatial-test.zip` unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.extras.importers.prepare.hf_rows import choice, made, question_row
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json

FOLDER = "OmniSpatial-test"


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question. An id is `<picture>_<question>` and is used again in other kinds, so rows are numbered by their place."""
    for number, item in enumerate(read_json(official(root, f"{FOLDER}/data.json"))):
        name = f"omnispatial-{split}-{number:04d}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: dict[str, Any]) -> Row:
    row = question_row(
        name,
        task="omnispatial",
        images=[f"{FOLDER}/{item['task_type']}/{str(item['id']).split('_')[0]}.png"],
        prompt=item["question"],
        meta={"split": split, "category": item["task_type"], "subcategory": item["sub_task_type"], "official_id": item["id"]},
    )
    return choice(row, item["options"], item["answer"])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
