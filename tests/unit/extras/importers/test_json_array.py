"""Files that are one JSON list of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.data.source import read_source
from vlmrl.errors import DataError
from vlmrl.extras.importers.json_array import elements

ROW = {"id": "a", "task": "t", "answer_type": "exact_text", "prompt": "q?", "answer": "yes"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8
)


@given(rows=st.lists(VALUES, max_size=5), indent=st.sampled_from([None, 2]), ascii_=st.booleans())
def test_elements_are_those_of_json(tmp_path_factory, rows, indent, ascii_):
    path = tmp_path_factory.getbasetemp() / "rows.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii_), encoding="utf-8", errors="surrogatepass")
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        with pytest.raises(DataError, match="not UTF-8"):
            list(elements(path))
        return
    assert [json.loads(text) for _, text in elements(path)] == rows


def test_lines_are_those_of_the_file(tmp_path: Path):
    path = tmp_path / "rows.json"
    path.write_text('[\n  {"a":\n 1},\n\n  {"b": 2}, {"c": "x\\ny"}\n]\n')
    assert [line for line, _ in elements(path)] == [2, 5, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', r"rows\.json: is not a list of rows \(it begins with '\{\"a\": 1\}'\); one object per line belongs into \.jsonl"),
        ("", "is not a list of rows"),
        ('[{"a": 1},\n{"b": 2', r"rows\.json:2: not a whole JSON list: .*is the file complete\?"),
        ('[{"a": 1} {"b": 2}]', "expected ',' or ']' at character 10"),
        ("[1, 2] 3", "something follows the list"),
        ("[" * 100_000, "brackets are nested too deeply"),
    ],
)
def test_what_is_no_list_is_said(tmp_path: Path, text: str, message: str):
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        list(elements(path))


def test_bad_rows_are_counted_like_lines(tmp_path: Path):
    path = tmp_path / "rows.json"
    twice = '{"id": "b", "id": "c"}'
    path.write_text(f"[\n{json.dumps(ROW)},\n{twice},\n{json.dumps(ROW | {'id': 'd', 'gt': {'count': '@'}})},\n7]".replace('"@"', "NaN"))
    report = read_source(path, media_root="")
    assert [s.id for s in report.samples] == ["a"]
    assert report.samples[0].source == f"{path}:2"
    assert [(b.line, b.reason) for b in report.bad][:2] == [(3, "duplicate_key"), (4, "not_finite")]
    assert report.bad[2].line == 5
