"""vlmrl.rows: a check of Python's rows that prints as text and shows itself in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

import vlmrl
from vlmrl.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmrl.extras.python.checked.CACHE", tmp_path / "cache")


def boxes(answers: dict[int, Any]) -> list[dict[str, Any]]:
    """A red box in each picture; `answers` replaces some gold boxes."""
    rows = []
    for n in range(4):
        box = [10 + 4 * n, 10, 60 + 4 * n, 40]
        picture = Image.new("RGB", (112, 84), "white")
        ImageDraw.Draw(picture).rectangle(box, fill="red")
        rows.append({"prompt": f"Where is box {n}?", "answer": answers.get(n, box), "image": picture})
    return rows


def test_rows_are_checked_and_shown(tmp_path: Path):
    """With the picture and the gold answer on it, from an iframe of its own."""
    found = vlmrl.rows(boxes({2: [10, 10, 500, 40]}), answer_type="bbox", frame="pixel")
    assert (found.good, found.total) == (3, 4)
    assert repr(found).startswith("4 rows, of the shape 'trl'\ngood: 3, ")
    assert found.problems[0].startswith("row 2: ")
    assert "first: row 2: " in repr(found)
    assert str(tmp_path) not in repr(found)
    page = found._repr_html_()
    assert page.startswith('<iframe srcdoc="')
    assert "Where is box 1?" in page
    assert "data:image/png;base64," in page


def test_columns_of_ones_own_and_a_file(tmp_path: Path):
    rows = [{"q": row["prompt"], "a": str(row["answer"]), "shot": row["image"]} for row in boxes({})]
    columns = {"prompt": "q", "answer": "a", "images": "shot"}
    assert vlmrl.rows(rows, answer_type="bbox", frame="pixel", columns=columns).good == 4
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n{"prompt": "3 + 3?", "answer": "six or so"}\n')
    found = vlmrl.rows(tmp_path / "rows.jsonl", answer_type="number")
    assert (found.good, found.total) == (1, 2)
    assert "rows.jsonl:2: " in repr(found), "a file has lines"


def test_what_is_wrong_is_said():
    with pytest.raises(ConfigError, match="unknown key 'answer_typ'; did you mean 'answer_type'"):
        vlmrl.rows(boxes({}), answer_typ="bbox")
    with pytest.raises(DataError, match="row 1, column 'answer': a object is not taken"):
        vlmrl.rows(boxes({1: object()}))
