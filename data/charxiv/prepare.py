"""CharXiv, reasoning questions: charts of scientific papers, answers checked by rule in place of the official judge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, file_or_parquet, made, number_or, picture, question_row
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, main, read_json

KINDS = {1: "text in chart", 2: "text in general", 3: "number in chart", 4: "number in general"}
"""Value of `reasoning_a_type` -> where the answer comes from. (`reasoning_q_source` says who wrote the question.)"""
ASK = {
    1: "Answer with text that is written in the chart; separate several terms with commas.",
    2: "Answer with one of the options in the question if there are any, else with a short phrase.",
    3: "Answer with a number that is written in the chart.",
}
"""What the form of the answer is, in our words."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per figure."""
    for number, item in enumerate(file_or_parquet(root, f"data/reasoning_{split}.json", _repository, f"{split}.parquet")):
        name = f"charxiv-{split}-{number:04d}"
        yield made(name, partial(_row, name, f"{split}/{number:04d}", split, item))


def _repository(path: Path) -> Iterator[Record]:
    """The records of the repository with the column names of the Parquet file."""
    for item in read_json(path).values():
        place = f"images/{item['figure_id']}.jpg"
        yield {"reasoning_q": item["query"], "reasoning_a": item["answer"], "reasoning_a_type": item["inst_category"], "figure_path": place}


def _row(name: str, path: str, split: str, item: Record) -> Row:
    kind, answer = item["reasoning_a_type"], item["reasoning_a"].strip()
    if kind not in KINDS:
        raise RowError("bad_value", f"reasoning_a_type {kind!r} is not one of {sorted(KINDS)}")
    image: Embedded | str = picture(item["image"], path) if "image" in item else item["figure_path"]
    row = question_row(
        name,
        task="charxiv",
        images=[image],
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
