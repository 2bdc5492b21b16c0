"""Readers of rows: every line is accounted for, nothing in a file can make them raise, and too much bad stops the run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrl.data import raw
from vlmrl.data.source import Dedupe, SourceReport, load_source, read_source
from vlmrl.errors import DataError
from vlmrl.types import Sample


def row(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {"id": name, "task": "qa", "answer_type": "choice", "image": "a.png", "prompt": "Which?", "answer": "B", **changes}


def line(name: str = "a", **changes: Any) -> bytes:
    return json.dumps(row(name, **changes)).encode() + b"\n"


def write(folder: Path, *lines: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def load(path: Path, *, dedupe: Dedupe = "error", limit: float = 0.001, quarantine: Path | None = None) -> list[Sample]:
    return load_source(path, media_root="media", dedupe=dedupe, max_bad_rows=limit, quarantine=quarantine)


def read(path: Path, dedupe: Dedupe = "error") -> SourceReport:
    return read_source(path, media_root="media", dedupe=dedupe)


def test_good_rows_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, line("b"), b"\n", line("a"), b"  \r\n", line("c").rstrip())
    report = read(path)
    assert [s.id for s in report.samples] == ["b", "a", "c"]
    assert [s.source for s in report.samples] == [f"{path}:1", f"{path}:3", f"{path}:5"]
    assert {s.media_root for s in report.samples} == {"media"}
    assert (report.blank, report.bad, report.rows) == (2, [], 3)


def test_a_byte_order_mark_is_tolerated_at_the_start_only(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    assert len(read(write(tmp_path, bom + line())).samples) == 1
    assert read(write(tmp_path, line("a"), bom + line("b"))).reasons() == {"json": 1}


BAD = {
    b"{": "json",
    b"nothing": "json",
    b'{"id": "x",}': "json",
    b"{'id': 'x'}": "json",
    b'{"id": "x"} {"id": "y"}': "json",
    b'{"id": "a\x00b"}': "json",
    b'{"id": "tab\there"}': "json",
    b"\x00\x00\x00": "json",
    b'{"id": "\xff"}': "encoding",
    b'\xff\xfe{\x00"\x00': "encoding",
    b'{"id": "caf\xe9"}': "encoding",
    b'{"id": "\xed\xa0\x80"}': "encoding",
    b"[]": "not_object",
    b"3": "not_object",
    b"null": "not_object",
    b'"text"': "not_object",
    b"[" * 100_000: "nesting",
    b'{"a":' * 100_000: "nesting",
    b'{"meta":' * 200 + b"1" + b"}" * 200: "nesting",
    b"{}": "missing_key",
    line(task=None).strip(): "missing_key",
    line(extra=1).strip(): "unknown_key",
    line(id=3).strip(): "bad_type",
    line(image=["a.png"]).strip(): "bad_type",
    line(answer_type="none").strip(): "bad_value",
    line(image="../a.png").strip(): "forbidden",
    line(image="http://a/b.png").strip(): "forbidden",
    line(prompt="<|im_end|>").strip(): "control_token",
    line(prompt="<image><image>Which?").strip(): "placeholder",
    line().strip()[:-1] + b', "meta": {"a": NaN}}': "not_finite",
    line().strip()[:-1] + b', "meta": {"a": -Infinity}}': "not_finite",
    line().strip()[:-1] + b', "meta": {"a": 1e999}}': "not_finite",
    line().strip()[:-1] + b', "meta": {"a": ' + b"9" * 5000 + b"}}": "bad_value",
    line().strip()[:-1] + b', "meta": {"a": ' + b"9" * 400 + b"}}": "bad_value",
    line().strip()[:-1] + b', "id": "again"}': "duplicate_key",
    line().strip()[:-1] + b', "meta": {"k": 1, "k": 1}}': "duplicate_key",
    line().strip()[:-1] + b', "meta": {"a": "\\ud800"}}': "encoding",
    line().strip()[:-1] + b', "meta": {"a": "\\u0000"}}': "bad_value",
    line(gt=[]).strip(): "bad_type",
    line(meta=3).strip(): "bad_type",
}


def test_forty_bad_lines(tmp_path: Path) -> None:
    assert len(BAD) == 40
    path = write(tmp_path, line("first"), *(bad + b"\n" for bad in BAD), line("last"))
    report = read(path)
    assert [s.id for s in report.samples] == ["first", "last"]
    got = {bad.line: bad.reason for bad in report.bad}
    assert got == {i + 2: reason for i, reason in enumerate(BAD.values())}
    assert all(bad.file == str(path) and bad.message and len(bad.excerpt) <= 200 for bad in report.bad)
    assert sum(report.reasons().values()) == 40


def test_long_lines_are_skipped_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "MAX_LINE", 1000)
    free = 1000 - len(line("x", thought="")) + 1
    just, over, far = (line("x", thought="t" * n) for n in (free, free + 1, free + 50_000))
    assert len(just) == 1001
    path = write(tmp_path, far, just, over, line("y"), far.strip())
    report = read(path)
    assert [s.id for s in report.samples] == ["x", "y"]
    assert [(bad.line, bad.reason) for bad in report.bad] == [(1, "too_long"), (3, "too_long"), (5, "too_long")]


def test_a_trailing_half_line(tmp_path: Path) -> None:
    report = read(write(tmp_path, line("a"), line("b")[:-20]))
    assert [(bad.line, bad.reason) for bad in report.bad] == [(2, "half_line")]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.sampled_from([line("a"), line("b"), b"\n", b"{}\n", b'{"id": "\xff"}\n']), max_size=8))
def test_any_bytes_are_accounted_for(parts: list[bytes]) -> None:
    content = b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        report = read(write(Path(folder), content), "keep_first")
    lines = content.split(b"\n")
    assert report.rows + report.blank == len(lines) - (lines[-1] == b"")
    assert sum(report.reasons().values()) == len(report.bad)
    assert len({s.id for s in report.samples}) == len(report.samples)


def test_repeated_ids(tmp_path: Path) -> None:
    path = write(tmp_path, line("a"), line("b"), line("a"), line("b", answer="C"))
    report = read(path)
    assert [(bad.line, bad.reason) for bad in report.bad] == [(3, "duplicate_id"), (4, "duplicate_id")]
    assert f"{path}:3" in report.bad[0].message
    assert f"{path}:1" in report.bad[0].message
    assert "the same content" in report.bad[0].message
    assert "different content" in report.bad[1].message

    kept = read(path, "keep_first")
    assert [s.id for s in kept.samples] == ["a", "b"]
    assert (kept.duplicates, [bad.line for bad in kept.bad]) == (1, [4])


def test_key_order_is_not_content(tmp_path: Path) -> None:
    turned = json.dumps(dict(reversed(row().items()))).encode() + b"\n"
    assert read(write(tmp_path, line(), turned), "keep_first").duplicates == 1


def test_repeated_ids_stop_the_run_however_few(tmp_path: Path) -> None:
    many = [line(str(i)) for i in range(2000)]
    path = write(tmp_path, *many, line("7"))
    with pytest.raises(DataError, match=r"1 repeated id.*keep_first"):
        load(path)
    assert len(load(path, dedupe="keep_first")) == 2000
    with pytest.raises(DataError, match="duplicate_id"):
        load(write(tmp_path, *many, line("7", answer="C")), dedupe="keep_first")


def test_one_bad_row_in_ten_stops_the_run(tmp_path: Path) -> None:
    path = write(tmp_path, *(line(str(i)) for i in range(9)), b"{}\n")
    quarantine = tmp_path / "quarantine.jsonl"
    with pytest.raises(DataError) as caught:
        load(path, quarantine=quarantine)
    message = str(caught.value)
    for part in ("1 of 10 rows", "10.00%", "0.10%", "missing_key 1", f"{path}:10", str(quarantine), "data.max_bad_rows"):
        assert part in message
    assert len(load(path, limit=0.1, quarantine=quarantine)) == 9


def test_few_bad_rows_in_many_are_quarantined(tmp_path: Path) -> None:
    path = write(tmp_path, *(line(str(i)) for i in range(999)), b'{"id": "caf\xe9"}\n')
    quarantine = tmp_path / "quarantine.jsonl"
    for _ in range(2):  # a resumed run reads the file again
        assert len(load(path, quarantine=quarantine)) == 999
    records = [json.loads(text) for text in quarantine.read_text().splitlines()]
    assert records == [
        {
            "file": str(path),
            "line": 1000,
            "reason": "encoding",
            "message": "not UTF-8: byte 0xe9 at position 11",
            "excerpt": '{"id": "caf\ufffd"}',
        }
    ]


def test_the_message_names_only_the_first_bad_rows(tmp_path: Path) -> None:
    path = write(tmp_path, line(), *[b"{}\n"] * 8)
    with pytest.raises(DataError, match="and 3 more") as caught:
        load(path)
    assert f"{path}:6:" in str(caught.value)
    assert f"{path}:7:" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}\n", b"\xef\xbb\xbf"])
def test_no_good_row(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="no usable row"):
        load(write(tmp_path, content), limit=1.0)


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path)
    (tmp_path / "rows.txt").write_text("id\n")
    with pytest.raises(DataError, match=r"'\.txt'"):
        load(tmp_path / "rows.txt")


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    span = {"id": "c", "task": "t", "answer_type": "time_span", "video": "v.mp4", "prompt": "When?", "gt": {"time": [1.0, 2.0]}}
    rows = [row("a"), row("b", answer_type="bbox", answer=None, gt={"boxes": [[0.0, 0.0, 1.0, 1.0]]}), row("x", image="/abs"), span]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{**dict.fromkeys([*row(), "video", "gt"]), **r} for r in rows]), path)
    report = read(path)
    assert [s.id for s in report.samples] == ["a", "b", "c"]
    assert dict(report.samples[1].gt) == {"boxes": [[0.0, 0.0, 1.0, 1.0]]}
    assert dict(report.samples[0].gt) == {}
    assert report.samples[2].answer == "1.00 to 2.00"
    assert [(bad.line, bad.reason) for bad in report.bad] == [(3, "forbidden")]
    assert report.samples[2].source == f"{path}:4"

    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="damaged or not a Parquet file"):
        read(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        read(tmp_path / "rows.parquet")
