"""Geometry3K: one folder per problem. As open questions with the value of the right choice, or as multiple choice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, lettered, main, official, read_json


def rows(root: Path, split: str, form: str) -> Iterator[Row | Skipped]:
    """`<split>/<number>/data.json` with `img_diagram.png` beside it."""
    folder = official(root, split)
    for problem in sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: int(path.name)):
        data = read_json(problem / "data.json")
        choices, right = data["choices"], "ABCD".find(data["answer"])
        if not 0 <= right < len(choices):
            raise DataError(f"{problem / 'data.json'}: answer {data['answer']!r} is none of the {len(choices)} choices")
        row: Row = {
            "id": f"geometry3k-{split}-{problem.name}",
            "task": "geometry",
            "data_type": "image",
            "image": f"{split}/{problem.name}/img_diagram.png",
            "prompt": data["annotat_text"],
            "meta": {"split": split, "graph": data["problem_type_graph"], "goal": data["problem_type_goal"]},
        }
        if form == "open":
            yield {**row, "answer_type": "math", "answer": choices[right]}
        else:
            yield {**row, "answer_type": "choice", "options": lettered(choices), "answer": data["answer"]}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "val", "test"), options={"form": ("open", "choice")})

if __name__ == "__main__":
    main(DATASET)
