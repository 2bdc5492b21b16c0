"""What a file of rows is read with where nobody says it, for `vlmrl eval --rows` and for calls from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from vlmrl.config.schema import SourceSection
from vlmrl.errors import ConfigError, DataError
from vlmrl.extras.python.rows import given
from vlmrl.extras.starter.source import source_of, source_of_model


@pytest.fixture
def screens(tmp_path: Path) -> Path:
    """Rows of clicks, whose boxes may also be asked for."""
    rows: list[dict[str, object]] = []
    for n in range(4):
        Image.new("RGB", (112, 84), (40 * n, 0, 0)).save(tmp_path / f"{n}.png")
        rows.append({"picture": f"{n}.png", "instruction": "Click on it, and give its bounding box.", "bbox": [10 + n, 60, 109, 80]})
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path / "rows.jsonl"


def numbers(path: Path) -> Path:
    path.write_text("\n".join(json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) for n in range(4)))
    return path


def test_what_is_given_stands_and_the_rest_is_found_and_told(screens: Path) -> None:
    found, lines = source_of(str(screens), {"answer_type": "point"}, media_root=None)
    assert found["answer_type"] == "point"
    assert found["frame"] == "pixel"
    assert found["columns"] == {"prompt": "instruction", "answer": "bbox", "images": "picture"}
    assert found["media_root"] == str(screens.parent)
    assert [line.strip().partition(":")[0] for line in lines] == ["media_root", "columns", "frame"]


def test_a_choice_is_left_to_the_user(screens: Path) -> None:
    with pytest.raises(ConfigError, match=r"say which: answer_type=bbox or answer_type=point"):
        source_of(str(screens), {}, media_root=None)
    with pytest.raises(ConfigError, match=r"answer_type=point"):
        given(str(screens), screens.parent).looked({})


def test_rows_are_read_as_those_that_a_model_was_trained_on(screens: Path) -> None:
    found, _ = source_of(str(screens), {}, media_root=None, like={"answer_type": "point", "to_frame": "pixel"})
    assert (found["answer_type"], found["to_frame"]) == ("point", "pixel")
    found, _ = source_of(str(numbers(screens.with_name("n.jsonl"))), {}, media_root=None, like={"answer_type": "point", "adapter": "trl"})
    assert found == {"columns": {"prompt": "question", "answer": "answer"}, "answer_type": "number"}


def test_rows_that_cannot_be_read_keep_the_error_of_their_reader(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("3\n")
    (tmp_path / "config.json").write_text("{}")  # of a model that lies in no run
    reason = DataError("the reader's own words")
    with pytest.raises(DataError) as told:
        source_of_model(SourceSection(path=str(tmp_path / "rows.jsonl")), tmp_path, None, reason)
    assert told.value is reason


def test_a_call_from_python_says_what_it_found(tmp_path: Path) -> None:
    file = given(str(numbers(tmp_path / "n.jsonl")), tmp_path).looked({})
    source = file.source({})
    assert (source["answer_type"], source["columns"]) == ("number", {"prompt": "question", "answer": "answer"})
    assert any("answers are numbers" in line for line in file.told)
    own = given(str(tmp_path / "n.jsonl"), tmp_path).looked({"answer_type": "math"}).source({"answer_type": "math"})
    assert own["answer_type"] == "math"
    objects = given([{"prompt": "How many?", "answer": str(n)} for n in range(4)], tmp_path).looked({})
    assert objects.written
    assert objects.source({})["answer_type"] == "number"
