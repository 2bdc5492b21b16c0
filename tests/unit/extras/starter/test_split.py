"""Held-out rows are taken by content: what is shown and asked in one part stands in no row of the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlmrl.errors import DataError
from vlmrl.extras.starter.split import HELD_OUT, TRAIN, split, wanted

SETTINGS = {"answer_type": "exact_text", "columns": {"prompt": "question", "answer": "answer", "images": "image"}}


def write(here: Path, pictures: int, questions: int) -> Path:
    """Rows of so many pictures, each with so many questions; each picture under two names."""
    for i in range(pictures):
        for name in (f"{i}.png", f"again-{i}.png"):
            Image.new("RGB", (28, 28), (i, 10, 20)).save(here / name)
    rows = [
        {"question": f"What is it, {k}?", "answer": "red", "image": f"{'again-' if k % 2 else ''}{i}.png"}
        for i in range(pictures)
        for k in range(questions)
    ]
    path = here / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parts(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    first, second = ([json.loads(line) for line in (folder / name).open()] for name in (TRAIN, HELD_OUT))
    return first, second


def test_no_medium_is_in_both_parts_whatever_its_name(here: Path):
    path = write(here, 20, 4)
    done = split(path, 20, Path("out"), SETTINGS, here)
    assert done is not None
    assert (done.train, done.held_out, done.left_out, done.by) == (60, 20, 0, "no medium is in both")
    train, held_out = parts(here / "out")
    assert {row["image"].removeprefix("again-") for row in train}.isdisjoint(row["image"].removeprefix("again-") for row in held_out)
    assert sorted(map(str, train + held_out)) == sorted(str(json.loads(line)) for line in path.open())


def test_the_parts_depend_on_the_content_alone(here: Path):
    path = write(here, 20, 2)
    assert split(path, 10, Path("one"), SETTINGS, here) is not None
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    assert split(path, 10, Path("two"), SETTINGS, here) is not None
    one, two = parts(here / "one"), parts(here / "two")
    assert sorted(map(str, one[1])) == sorted(map(str, two[1]))


def test_few_pictures_with_many_questions_are_split_by_question(here: Path):
    path = write(here, 1, 80)
    done = split(path, 16, Path("out"), SETTINGS, here)
    assert done is not None
    assert (done.held_out, done.by) == (16, "no medium is in both with the same question")
    train, held_out = parts(here / "out")
    assert {row["question"] for row in train}.isdisjoint(row["question"] for row in held_out)


def test_rows_that_are_all_the_same_are_not_split(here: Path):
    path = write(here, 1, 1)
    path.write_text(path.read_text() * 80)
    assert split(path, 16, Path("out"), SETTINGS, here) is None
    assert not (here / "out").exists()


def test_rows_that_cannot_be_used_are_named(here: Path):
    path = write(here, 20, 4)
    (here / "3.png").unlink()
    with pytest.raises(DataError, match=r"2 of 80 rows cannot be used; fix them or take them out:\n  .*rows\.jsonl:13: missing"):
        split(path, 16, Path("out"), SETTINGS, here)


@pytest.mark.parametrize(
    ("rows", "given", "count"), [(63, None, 0), (64, None, 16), (1000, None, 100), (9000, None, 200), (12, 4, 4), (12, 9, 6), (500, 0, 0)]
)
def test_how_many_are_held_out(rows: int, given: int | None, count: int):
    assert wanted(rows, given) == count
