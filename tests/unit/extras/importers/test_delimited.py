"""importers.delimited: CSV and TSV files as rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import SourceReport, read_source
from vlmrl.errors import DataError

OPTIONS = ImportOptions(answer_type="exact_text", columns={"prompt": "q", "answer": "a"})


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def load(path: Path) -> SourceReport:
    return read_source(path, media_root=".", options=OPTIONS)


def test_records_are_named_by_the_line_on_which_they_begin(tmp_path: Path) -> None:
    path = write(tmp_path, 'q,a,more\n"Why, and\nhow?",x,1\n\nWhat?,"a ""b""",\r\nWho?,z\nWhen?,,2\n')
    report = load(path)
    assert [(s.source, s.question, s.answer) for s in report.samples] == [
        (f"{path}:2", "Why, and\nhow?", "x"),
        (f"{path}:5", "What?", 'a "b"'),
    ]
    assert [(bad.line, bad.reason) for bad in report.bad] == [(6, "columns"), (7, "missing_key")]
    assert "2 cells" in report.bad[0].message
    assert dict(report.samples[0].meta) == {"more": "1"}


def test_tabs_a_byte_order_mark_and_an_index_column_without_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffq\ta\t\nWhy?\tx, y\t0\n", "rows.tsv")
    (sample,) = load(path).samples
    assert (sample.question, sample.answer, dict(sample.meta)) == ("Why?", "x, y", {})


def test_cells_as_long_as_pictures_and_the_limit_of_the_process_afterwards(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = write(tmp_path, "q,a,pic\nWhy?,x," + "A" * (before + 1000) + "\n")
    assert len(load(path).samples) == 1
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; its first line must name the columns"),
        ("q,a,q\n1,2,3\n", "rows.csv:1: the column 'q' is named twice"),
        ('q,a\n"Why?,x\n', "rows.csv:2: not a whole CSV record"),
    ],
)
def test_files_that_cannot_be_read_whole_are_errors(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=told):
        load(write(tmp_path, text))


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("q,a\nCafé?,x\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        load(path)


def test_a_share_of_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "q,a\n" + "".join(f"Why {i}?,x\n" for i in range(9)))
    assert len(load(tmp_path / "rows.csv#4").samples) == 4
    assert len(load(path).samples) == 9
