"""ChartQA: questions over charts, written by people or by a program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, file_or_parquet, made, picture, question_row, texts
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json

ASK = "Answer with a single word or number."
"""Ours."""
FOLDER = "ChartQA Dataset"
"""Of the repository."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; `meta.category` is `human` or `augmented`."""
    items = file_or_parquet(root, f"{FOLDER}/{split}/{split}_human.json", partial(_repository, split), f"data/{split}-*.parquet")
    for number, item in enumerate(items):
        name = f"chartqa-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _repository(split: str, human: Path) -> Iterator[Record]:
    """The records of the repository's two files with the column names of the Parquet files."""
    for kind in ("human", "augmented"):
        for item in read_json(official(human.parent, f"{split}_{kind}.json")):
            image = f"{FOLDER}/{split}/png/{item['imgname']}"
            yield {"image": image, "question": item["query"], "answer": item["label"], "type": f"{kind}_{split}"}


def _row(name: str, path: str, split: str, item: Record) -> Row:
    image = item["image"]
    row = question_row(
        name,
        task="chartqa",
        images=[image if isinstance(image, str) else picture(image, path)],
        prompt=f"{item['question'].strip()} {ASK}",
        meta={"split": split, "category": item["type"].removesuffix(f"_{split}")},
    )
    return texts(row, [item["answer"]])


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
