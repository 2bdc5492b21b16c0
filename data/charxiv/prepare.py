"""CharXiv, reasoning questions: charts of scientific papers, answers checked by rule in place of the official judge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.prepare.hf_rows import Record, made, number_or, picture, question_row, records
from vlmrl.prepare.prepare import Dataset, Row, Skipped, main

KINDS = {1: "text in chart", 2: "text in general", 3: "number in chart", 4: "number in general"}
"""Value of `reasoning_q_source` -> where the answer comes from."""
ASK = {
    1: "Answer with text that is written in the chart; separate several terms with commas.",
    2: "Answer with one of the options in the question if there are any, else with a short phrase.",
    3: "Answer with a number that is written in the chart.",
}
"""What the form of the answer is, in our words."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per figure."""
    for number, item in enumerate(records(root, f"{split}.parquet")):
        name = f"charxiv-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _row(name: str, path: str, split: str, item: Record) -> Row:
    kind, answer = item["reasoning_q_source"], item["reasoning_a"].strip()
    if kind not in KINDS:
        raise RowError("bad_value", f"reasoning_q_source {kind!r} is not one of {sorted(KINDS)}")
    row = question_row(
        name,
        task="charxiv",
        images=[picture(item["image"], path)],
        prompt=f"{item['reasoning_q'].strip()} {ASK.get(kind) or _decimals(answer)}",
        meta={"split": split, "category": KINDS[kind], "figure": item["figure_path"]},
    )
    return number_or(row, answer, "exact_text")


def _decimals(answer: str) -> str:
    digits = len(answer.partition(".")[2])
    return f"Answer with a number with {digits} decimal place(s)." if digits else "Answer with a whole number."


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("val",))

if __name__ == "__main__":
    main(DATASET)
