"""SAT (Spatial Aptitude Training): one or two pictures, a question and its possible answers, also in circular form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, letter, lettered, main, official


def rows(root: Path, split: str, circular: str) -> Iterator[Row | Skipped]:
    """The release lists the answers in a telling order; here the order follows from a hash of question number and answer.

    With `circular` every rotation of that order is a row of its own, `meta.rotation`; a question counts as right if all of them are.
    """
    file = parquet.ParquetFile(official(root, f"SAT_{split}.parquet"))
    records = (record for batch in file.iter_batches(batch_size=64) for record in batch.to_pylist())
    for number, record in enumerate(records):
        name = f"sat-{split}-{number:06d}"
        if record["answers"].count(record["correct_answer"]) != 1:
            yield Skipped(name, "right answer not once among the answers", unit=number)
            continue
        order = sorted(record["answers"], key=lambda answer: hashlib.sha256(f"{number}:{answer}".encode()).digest())
        images = [Embedded(f"{split}/{number:06d}_{i}{_suffix(data)}", data) for i, data in enumerate(map(_bytes, record["image_bytes"]))]
        for turn in range(len(order) if circular == "yes" else 1):
            turned = order[turn:] + order[:turn]
            yield {
                "id": f"{name}-{turn}",
                "task": "spatial",
                "answer_type": "choice",
                "data_type": "image" if len(images) == 1 else "multi_image",
                "images": images,
                "prompt": record["question"],
                "options": lettered(turned),
                "answer": letter(turned.index(record["correct_answer"])),
                "meta": {
                    "split": split,
                    "question": number,
                    "question_group": name,
                    "rotation": turn,
                    "category": record["question_type"],
                    "question_type": record["question_type"],
                },
            }


def _bytes(image: Any) -> bytes:
    """Pictures are stored as bytes, or as {bytes, path} in versions that declare them as images."""
    return image["bytes"] if isinstance(image, dict) else image


def _suffix(data: bytes) -> str:
    return ".png" if data.startswith(b"\x89PNG") else ".jpg"


DATASET = Dataset(
    folder=Path(__file__).parent,
    rows=rows,
    splits=("train", "static", "val", "test"),
    unit="question",
    options={"circular": ("no", "yes")},
)

if __name__ == "__main__":
    main(DATASET)
