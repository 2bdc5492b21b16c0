"""MathVerse testmini: each problem in five versions that move the information from the text into the diagram."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, file_or_parquet, inline_choice, inline_options, made, picture, question_row
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, read_json

IN_PICTURE = "Answer the question that is written in the image."
"""Ours: the text of the version 'Vision Only' may be empty."""
LETTER = re.compile(r"[A-H]|\([A-H]\)")
SEVERAL = re.compile(r"[A-H](\s+[A-H])+")
"""The release has answers `B`, `(B)`, the text of an option, and two with a letter on each of two lines."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per problem and version (`meta.category`); the question, without the release's instructions."""
    known: dict[str, list[str]] = {}  # options of a problem: a version that has them in the picture follows one that has them in the text
    for item in file_or_parquet(root, f"{split}.json", read_json, f"{split}.parquet"):
        name = f"mathverse-{split}-{int(item['sample_index']):04d}"
        options = inline_options(item.get("question_for_eval") or item["question"]) or known.get(item["problem_index"], [])
        known[item["problem_index"]] = options
        yield made(name, partial(_row, name, split, item, options))


def _row(name: str, split: str, item: Record, options: list[str]) -> Row:
    hidden, image = item["problem_version"] == "Vision Only", item["image"]
    row = question_row(
        name,
        task="mathverse",
        images=[f"images/{image}" if isinstance(image, str) else picture(image, f"{split}/{int(item['sample_index']):04d}")],
        prompt=IN_PICTURE if hidden else item["question"],
        meta={"split": split, "category": item["problem_version"], "problem": str(item["problem_index"])},
    )
    answer = item["answer"].strip()
    if item["question_type"] != "multi-choice":
        return {**row, "answer_type": "math", "answer": answer}
    if SEVERAL.fullmatch(answer):
        raise RowError("bad_value", f"answer {answer!r} is several letters; a choice has one right option")
    if not LETTER.fullmatch(answer):  # the text of an option in place of its letter
        texts = [option[2:].strip() for option in options]
        if texts.count(answer) != 1:
            raise RowError("bad_value", f"answer {answer!r} is neither a letter nor one of the options {texts}")
        answer = "ABCDEFGH"[texts.index(answer)]
    return inline_choice(row, answer)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("testmini",))

if __name__ == "__main__":
    main(DATASET)
