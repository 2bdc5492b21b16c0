"""Samples that are parsed when they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlmrl.data.adapters import ImportOptions
from vlmrl.data.lazy import InOrder, LazySamples
from vlmrl.data.raw import raw_rows
from vlmrl.data.source import BadRow, RowReader, read_source
from vlmrl.errors import DataError

TALK = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A"}]


def lazy_of(path: Path, options: ImportOptions) -> LazySamples:
    reader = RowReader(options, "m")
    out = LazySamples(reader)
    for place, raw in raw_rows(path):
        for part, found in enumerate(one for one in reader.read(raw, place) if not isinstance(one, BadRow)):
            out.add(found[0].id, raw, place, part, found[1])
    return out


def test_they_are_the_samples_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = ["", *(json.dumps({"messages": [*TALK, *TALK], "n": n}) for n in range(4)), "", json.dumps({"messages": TALK})]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    options = ImportOptions(answer_type="exact_text", task="t", turns="split")
    samples, lazy = read_source(path, media_root="m", options=options).samples, lazy_of(path, options)
    assert len(lazy) == 9
    assert list(lazy.items()) == [(sample.id, sample) for sample in samples]
    assert InOrder(lazy)[2] == samples[2]
    assert InOrder(lazy)[1:3] == samples[1:3]
    with pytest.raises(KeyError):
        lazy["none"]


def test_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    own = [{"id": f"r{n}", "task": "t", "answer_type": "number", "prompt": "Q", "answer": str(n)} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in own))
    lazy = lazy_of(path, ImportOptions())
    path.rename(tmp_path / "moved.jsonl")
    assert lazy["r1"].answer == "1", "the file that was opened is read"
    whole = (tmp_path / "moved.jsonl").read_text()
    (tmp_path / "moved.jsonl").write_text(whole.replace('"answer": "1"', '"answer": "8"'))
    assert lazy["r0"].answer == "0"
    with pytest.raises(DataError, match=r"rows.jsonl:2: row 'r1' changed while it is in use"):
        lazy["r1"]
