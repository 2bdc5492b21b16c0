"""MathVista testmini, from `annot_testmini.json` and the unpacked pictures. Rows without a judge: every answer is checked by rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.prepare.prepare import Dataset, Row, Skipped, letter, lettered, main, official, read_json


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Choices become letters, integers `gt.count`, other numbers `gt.number`; lists and texts are open answers."""
    path = official(root, f"annot_{split}.json")
    for pid, item in read_json(path).items():
        question = item["question"] + (f" (Unit: {item['unit']})" if item["unit"] else "")
        row: Row = {
            "id": f"mathvista-{split}-{pid}",
            "task": "math_vqa",
            "data_type": "image",
            "image": item["image"],
            "prompt": question,
            "answer": item["answer"],
            "meta": {"split": split, "origin": item["metadata"]["source"], "skills": item["metadata"]["skills"]},
        }
        kind = item["answer_type"]
        if item["question_type"] == "multi_choice":
            if item["answer"] not in item["choices"]:
                raise DataError(f"{path}: {pid}: answer {item['answer']!r} is none of its choices")
            answer = letter(item["choices"].index(item["answer"]))
            yield {**row, "answer_type": "choice", "options": lettered(item["choices"]), "answer": answer}
        elif kind == "integer":
            yield {**row, "answer_type": "number", "gt": {"count": int(item["answer"])}}
        elif kind == "float":
            digits = int(item["precision"] or 2)
            row["prompt"] = f"{question} Round the answer to {digits} decimal place(s)."
            yield {**row, "answer_type": "number", "gt": {"number": float(item["answer"])}}
        else:
            yield {**row, "answer_type": "exact_text"}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("testmini",))

if __name__ == "__main__":
    main(DATASET)
