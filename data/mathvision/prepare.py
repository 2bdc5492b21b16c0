"""MATH-Vision: competition problems with a picture, of 16 subjects and 5 levels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.prepare.hf_rows import Record, choice, inline_choice, made, picture, question_row, records
from vlmrl.prepare.prepare import Dataset, Row, Skipped, main


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per problem: a choice where there are options, else `math`."""
    for item in records(root, f"data/{split}-*.parquet"):
        name = f"mathvision-{split}-{item['id']}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="mathvision",
        images=[picture(item["decoded_image"], f"{split}/{item['id']}")],
        prompt=item["question"],
        meta={"split": split, "category": item["subject"], "difficulty": str(item["level"])},
    )
    options, answer = list(item["options"]), item["answer"].strip()
    if not options:
        return {**row, "answer_type": "math", "answer": answer}
    if options == list("ABCDEFGH"[: len(options)]):  # the options are in the picture
        return inline_choice(row, answer)
    return choice(row, options, answer)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("testmini", "test"))

if __name__ == "__main__":
    main(DATASET)
