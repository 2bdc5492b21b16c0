"""MathVista testmini, from `testmini.json` and the unpacked pictures, or the Parquet files. Rows without a judge: checked by rule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.hf_rows import Record, file_or_parquet, made, picture
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, letter, lettered, main, read_json


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Choices become letters, integers `gt.count`, other numbers `gt.number`; lists and texts are open answers."""
    for item in file_or_parquet(root, f"{split}.json", lambda path: read_json(path).values(), f"data/{split}-*.parquet"):
        name = f"mathvista-{split}-{item['pid']}"
        yield made(name, partial(_row, name, split, item))


def _row(name: str, split: str, item: Record) -> Row:
    question = item["question"] + (f" (Unit: {item['unit']})" if item["unit"] else "")
    row: Row = {
        "id": name,
        "task": "math_vqa",
        "data_type": "image",
        "image": _image(item),
        "prompt": question,
        "answer": item["answer"],
        "meta": {"split": split, "origin": item["metadata"]["source"], "skills": list(item["metadata"]["skills"])},
    }
    kind, choices = item["answer_type"], list(item["choices"] or [])
    if item["question_type"] == "multi_choice":
        if item["answer"] not in choices:
            raise RowError("bad_value", f"answer {item['answer']!r} is none of its choices")
        return {**row, "answer_type": "choice", "options": lettered(choices), "answer": letter(choices.index(item["answer"]))}
    if kind == "integer":
        return {**row, "answer_type": "number", "gt": {"count": int(item["answer"])}}
    if kind == "float":
        digits = int(item["precision"] or 2)
        row["prompt"] = f"{question} Round the answer to {digits} decimal place(s)."
        return {**row, "answer_type": "number", "gt": {"number": float(item["answer"])}}
    return {**row, "answer_type": "exact_text"}


def _image(item: Record) -> str | Embedded:
    """The unpacked picture, or the one within the Parquet file under the same name without its suffix."""
    return picture(item["decoded_image"], item["image"].rpartition(".")[0]) if "decoded_image" in item else item["image"]


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("testmini",))

if __name__ == "__main__":
    main(DATASET)
