"""Super-CLEVR, counting questions: the official splits by image number, and the 200 problems that counting papers test on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json, read_jsonl

IMAGES = {"train": range(20_000), "val": range(20_000, 25_000), "test": range(25_000, 30_000)}
"""Image numbers of each split, as the release says."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Questions whose program ends with `count`; `test200` reads the problem file of R1-V instead."""
    if split == "test200":
        for number, item in read_jsonl(official(root, "superclevr_test200_counting_problems.jsonl")):
            yield _row(f"super_clevr-test200-{number:03d}", Path(item["image_path"]).name, item["question"], item["ground_truth"], split)
        return
    for number, item in enumerate(read_json(official(root, "superCLEVR_questions_30k.json"))["questions"]):
        if _image_number(item["image_filename"]) not in IMAGES[split]:
            continue
        name = f"super_clevr-{split}-{number:06d}"
        last = item["program"][-1]
        if last.get("function", last.get("type")) != "count":
            yield Skipped(name, "not a counting question", listed=False)
        else:
            yield _row(name, item["image_filename"], item["question"], item["answer"], split)


def _image_number(file_name: str) -> int:
    found = re.search(r"_(\d+)\.png$", file_name)
    if found is None:
        raise DataError(f"image name {file_name!r} does not end in _<number>.png")
    return int(found[1])


def _row(name: str, image: str, question: str, answer: Any, split: str) -> Row:
    return {
        "id": name,
        "task": "counting",
        "answer_type": "number",
        "data_type": "image",
        "image": f"images/{image}",
        "prompt": question,
        "answer": str(answer),
        "gt": {"count": int(answer)},
        "meta": {"split": split},
    }


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "val", "test", "test200"))

if __name__ == "__main__":
    main(DATASET)
