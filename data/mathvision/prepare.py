"""MATH-Vision: competition problems with a picture, of 16 subjects and 5 levels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, choice, file_or_parquet, inline_choice, made, picture, question_row
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, main, read_jsonl


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per problem: a choice where there are options, else `math`."""
    for item in file_or_parquet(root, f"data/{split}.jsonl", _repository, f"data/{split}-*.parquet"):
        name = f"mathvision-{split}-{item['id']}"
        yield made(name, partial(_row, name, split, item))


def _repository(path: Path) -> Iterator[Record]:
    return (item for _, item in read_jsonl(path))


def _row(name: str, split: str, item: Record) -> Row:
    row = question_row(
        name,
        task="mathvision",
        images=[_image(item, split)],
        prompt=item["question"],
        meta={"split": split, "category": item["subject"], "difficulty": str(item["level"])},
    )
    options, answer = list(item["options"]), item["answer"].strip()
    if not options:
        return {**row, "answer_type": "math", "answer": answer}
    if [option.strip("()") for option in options] == list("ABCDEFGH"[: len(options)]):  # the options are in the picture
        return inline_choice(row, answer)
    return choice(row, options, answer)


def _image(item: Record, split: str) -> str | Embedded:
    """The file of the repository, or the picture within the Parquet file."""
    return picture(item["decoded_image"], f"{split}/{item['id']}") if "decoded_image" in item else item["image"]


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("testmini", "test"))

if __name__ == "__main__":
    main(DATASET)
