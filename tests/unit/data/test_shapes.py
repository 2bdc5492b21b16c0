"""Every shape of rows that users bring is read, or refused with a way in; and the table of docs/data.md says what happens."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from tests.support.shapes import BEGIN, END, PAGE, SHAPES, Shape, outcome, table, told


@pytest.mark.parametrize("shape", SHAPES, ids=[f"{shape.group}: {shape.name}" for shape in SHAPES])
def test_what_becomes_of_a_shape(shape: Shape, tmp_path: Path) -> None:
    assert bool(shape.read) != bool(shape.refused)
    found = outcome(shape, tmp_path)
    if shape.refused:
        assert not found.samples
        assert shape.refused in found.error
        return
    assert not found.error
    got = [told(sample) for sample in found.samples]
    assert [one[:2] for one in got] == [one[:2] for one in shape.read]
    for one, expected in zip(got, shape.read, strict=True):
        assert len(one[2]) == len(expected[2])
        places = [path.replace("/", "-", 1).replace("/", "") for path in one[2]]
        assert all(fnmatch.fnmatch(place, pattern.replace("/", "-", 1)) for place, pattern in zip(places, expected[2], strict=True))


def test_the_table_of_the_page_is_what_happens() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert BEGIN in page, "the page has lost the marks of its table"
    shown = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(), "docs/data.md says something else; write it again: python -m tests.support.shapes"
