"""MMMU: thirty subjects, multiple choice and open questions over up to seven pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, lettered, main, official, python_strings

MOST = 7
"""Pictures of one question."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Every `<subject>/<split>-*.parquet` below `root`. Pictures come first, in order; the text keeps its references `<image 1>`."""
    paths = sorted(official(root, ".").glob(f"*/{split}-*.parquet"))
    if not paths:
        raise DataError(f"{root}: no file <subject>/{split}-*.parquet; card.md says how the official download is laid out")
    for path in paths:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
            yield from (_row(item, path.parent.name, split) for item in batch.to_pylist())


def _row(item: dict[str, Any], subject: str, split: str) -> Row:
    images = [
        Embedded(f"{split}/{item['id']}_{i}.png", item[f"image_{i}"]["bytes"])
        for i in range(1, MOST + 1)
        if item.get(f"image_{i}") is not None
    ]
    row: Row = {
        "id": f"mmmu-{item['id']}",
        "task": "mmmu",
        "data_type": "image" if len(images) == 1 else "multi_image",
        "images": images,
        "prompt": item["question"],
        "meta": {
            "split": split,
            "category": subject,
            "subject": subject,
            "subfield": item["subfield"],
            "level": item["topic_difficulty"],
        },
    }
    answer = item["answer"]
    if item["question_type"] == "multiple-choice":
        options = lettered(python_strings(item["options"]))
        if answer not in [option[0] for option in options]:
            raise DataError(f"{item['id']}: answer {answer!r} is the letter of none of its {len(options)} options")
        return {**row, "answer_type": "choice", "options": options, "answer": answer}
    accepted = python_strings(answer) if answer.startswith("[") else [answer]
    return {**row, "answer_type": "exact_text", "answer": accepted[0], "gt": {"accepted": accepted}}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("dev", "validation"))

if __name__ == "__main__":
    main(DATASET)
