"""Counting problems of R1-V on pictures of CLEVR-CoGenT: how many items a picture shows. The pictures are inside the Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, answer_block, made, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per record, in the order of the files."""
    for number, item in enumerate(records(root, "clevr_cogen_a_train/data/train-*.parquet")):
        name = f"clevr_cogen-{split}-{number:06d}"
        yield made(name, partial(_row, name, item, split))


def _row(name: str, item: Record, split: str) -> Row:
    answer = answer_block(item["solution"])
    if not answer.isdecimal():
        raise RowError("bad_value", f"the solution is {answer[:40]!r}, no count")
    image = picture(item["image"], f"{split}/{name}")
    row = question_row(name, task="counting", images=[image], prompt=item["problem"], meta={"split": split})
    return {**row, "answer_type": "number", "answer": answer, "gt": {"count": int(answer)}}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train",))

if __name__ == "__main__":
    main(DATASET)
