"""Coordinate frames of rows: stated, known by one word each, refused when the row is read."""

from __future__ import annotations

import pytest

from vlmrl.answers.frame import frame_of, sides_of, size_of
from vlmrl.data.row import parse_row
from vlmrl.errors import RowError
from vlmrl.types import Sample

ROW = {"id": "a", "task": "t", "answer_type": "bbox", "image": "a.png", "prompt": "Where?", "gt": {"boxes": [[0, 0, 1, 1]]}}


def sample(meta: dict, gt: dict | None = None) -> Sample:
    return Sample(id="a", task="t", answer_type="point", question="?", media=(), answer="", gt=gt or {}, meta=meta, source="r.jsonl:1")


def test_a_frame_is_stated() -> None:
    assert [frame_of(sample({"frame": frame})) for frame in ("pixel", "norm1", "norm1000")] == ["pixel", "norm1", "norm1000"]
    assert frame_of(sample({}, {"action": {"action": "click"}})) == "norm1000"
    for meta in ({}, {"frame": "percent"}):
        with pytest.raises(ValueError, match=r"row 'a' \(r.jsonl:1\): .*meta\.frame.* never guessed"):
            frame_of(sample(meta))


def test_sides_in_the_units_of_the_frame() -> None:
    assert sides_of(sample({"frame": "norm1000", "size": [640, 480]})) == (1000, 1000)
    assert sides_of(sample({"frame": "norm1"})) == (1, 1)
    assert sides_of(sample({"frame": "pixel", "size": [640, 480]})) == (640, 480)
    assert size_of(sample({})) is None
    with pytest.raises(ValueError, match=r"pixels need 'meta\.size'"):
        sides_of(sample({"frame": "pixel"}))
    with pytest.raises(ValueError, match=r"must be \[width, height\] in pixels"):
        size_of(sample({"size": [0, 5]}))


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        ("rel1000", "'rel1000' is called 'norm1000'"),
        ("rel1", "'rel1' is called 'norm1'"),
        ("percent", "known: pixel, norm1, norm1000"),
        (1000, "meta.frame is '1000'"),
        (["pixel"], "known: pixel"),
    ],
)
def test_a_row_in_an_unknown_frame_is_refused_when_it_is_read(frame: object, told: str) -> None:
    with pytest.raises(RowError, match=told) as caught:
        parse_row({**ROW, "meta": {"frame": frame}}, source="r.jsonl:1", media_root=".")
    assert caught.value.reason == "bad_value"


def test_a_row_without_a_frame_is_read() -> None:
    assert "frame" not in parse_row({**ROW, "meta": {"frame": None}}, source="r.jsonl:1", media_root=".").meta
