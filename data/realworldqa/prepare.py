"""RealWorldQA: everyday scenes, mostly seen from vehicles; multiple choice, numbers and short texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, inline_choice, inline_options, made, number_or, picture, question_row, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, letter, main

_FORM = re.compile(r"\s*Please answer directly with [^.]*\.\s*$")
"""The release's sentence about the form of the answer, which would contradict ours."""
_LABEL = re.compile(r"^\(?[A-Z][).:]\s*")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per question; those with a list `A. ...` and a letter as the answer are choices."""
    for number, item in enumerate(records(root, "data/test-*.parquet")):
        name = f"realworldqa-{split}-{number:03d}"
        yield made(name, partial(_row, name, f"{split}/{number:03d}", split, item))


def _row(name: str, path: str, split: str, item: Record) -> Row:
    question, answer = _FORM.sub("", item["question"]), item["answer"].strip()
    row = question_row(name, task="realworldqa", images=[picture(item["image"], path)], prompt=question, meta={"split": split})
    options = inline_options(row["prompt"])
    texts = [_LABEL.sub("", option).lower() for option in options]
    if answer.lower() in texts:  # one question has the text of an option for its letter
        return inline_choice(row, letter(texts.index(answer.lower())))
    is_choice = len(answer) == 1 and answer.isalpha() and bool(options)
    return inline_choice(row, answer) if is_choice else number_or(row, answer, "exact_text")


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
