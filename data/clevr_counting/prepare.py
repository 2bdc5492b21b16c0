"""CLEVR, counting questions only: those whose program ends with `count`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Every question is read; those that do not ask for a number of things are left out."""
    for number, item in enumerate(read_json(official(root, f"questions/CLEVR_{split}_questions.json"))["questions"]):
        name = f"clevr-{split}-{number:06d}"
        if item["program"][-1]["function"] != "count":
            yield Skipped(name, "not a counting question", listed=False)
            continue
        yield {
            "id": name,
            "task": "counting",
            "answer_type": "number",
            "data_type": "image",
            "image": f"images/{split}/{item['image_filename']}",
            "prompt": item["question"],
            "answer": item["answer"],
            "gt": {"count": int(item["answer"])},
            "meta": {"split": split, "family": item["question_family_index"]},
        }


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "val"))

if __name__ == "__main__":
    main(DATASET)
