"""MindCube: what is where in a room that two to four pictures show, from the JSONL files of its archive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.extras.importers.prepare.hf_rows import inline_choice, made, question_row
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_jsonl

FILES = {"tiny": "MindCube_tinybench.jsonl", "full": "MindCube.jsonl"}
SETTINGS = ("among", "around", "rotation")
"""How the camera moves, by the beginning of the id."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; its text shows the options as `A. ...`, paths of pictures are relative to `data/`."""
    for _, item in read_jsonl(official(root, f"data/raw/{FILES[split]}", f"raw/{FILES[split]}")):
        name = f"mindcube-{split}-{item['id']}"
        yield made(name, partial(_row, name, split, item, "data/" if (root / "data").is_dir() else ""))


def _row(name: str, split: str, item: dict[str, Any], folder: str) -> Row:
    category = next((setting for setting in SETTINGS if item["id"].startswith(setting)), "other")
    row = question_row(
        name,
        task="mindcube",
        images=[f"{folder}{path}" for path in item["images"]],
        prompt=item["question"],
        meta={"split": split, "category": category, "official_id": item["id"]},
    )
    return inline_choice(row, item["gt_answer"])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=tuple(FILES))

if __name__ == "__main__":
    main(DATASET)
