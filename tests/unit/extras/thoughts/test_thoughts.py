"""thoughts.rows: a new file with thoughts, everything else as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import fs_ops
from vlmrl.data.source import load_source
from vlmrl.errors import DataError, StorageError
from vlmrl.extras.thoughts.rows import add_thoughts


def line(name: str, **more) -> str:
    row = {"id": name, "task": "t", "answer_type": "number", "prompt": "How  many ü?", "answer": "3", **more}
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([line("a"), "", line("b", thought="mine"), line("c", thought=None), line("d")]) + "\n", encoding="utf-8")
    return path


def derive(samples):
    given = {"a": ("A ü", "ok"), "b": ("new", "ok"), "c": ("C", "ok"), "d": (None, "empty")}
    return [(s.id, *given[s.id]) for s in reversed(samples)]


def test_only_rows_without_a_thought_change(source: Path):
    target = source.with_name("out.jsonl")
    report = add_thoughts(source, target, derive, media_root=".")
    before, after = source.read_text(encoding="utf-8").split("\n"), target.read_text(encoding="utf-8").split("\n")
    assert [b == a for b, a in zip(before, after, strict=True)] == [False, True, True, False, True, True]
    assert json.loads(after[0]) == {**json.loads(before[0]), "thought": "A ü"}
    assert {s.id: s.thought for s in load_source(target, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)} == {
        "a": "A ü",
        "b": "mine",
        "c": "C",
        "d": None,
    }
    assert (report.rows, report.kept, report.added, report.reasons, report.without) == (4, 1, 2, {"empty": 1}, ("d",))


def test_overwrite_asks_for_all_rows(source: Path):
    target = source.with_name("out.jsonl")
    report = add_thoughts(source, target, derive, media_root=".", overwrite=True)
    assert (report.kept, report.added) == (0, 3)
    assert json.loads(target.read_text(encoding="utf-8").split("\n")[2])["thought"] == "new"


def test_what_comes_back_is_checked(source: Path):
    target = source.with_name("out.jsonl")
    bad = {
        "nothing came for 1 of 3 rows, first 'd'": lambda samples: [(s.id, "x", "ok") for s in samples if s.id != "d"],
        "'b', which was not asked for": lambda samples: [("b", "x", "ok")],
        "or twice": lambda samples: [("a", "x", "ok"), ("a", "y", "ok")],
        "rows.jsonl:1: with its new thought the row is invalid": lambda samples: [(s.id, "see <|im_end|>", "ok") for s in samples],
    }
    for message, made in bad.items():
        with pytest.raises(DataError, match=message):
            add_thoughts(source, target, made, media_root=".")
    assert not target.exists()


def test_the_source_is_never_written(source: Path):
    with pytest.raises(DataError, match="is the source itself"):
        add_thoughts(source, source.parent / "." / "rows.jsonl", derive, media_root=".")
    with pytest.raises(DataError, match=r"added to \.jsonl files"):
        add_thoughts(source.with_suffix(".parquet"), source.with_name("o.jsonl"), derive, media_root=".")


def test_a_full_disk_leaves_the_old_target(source: Path):
    target = source.with_name("out.jsonl")
    target.write_text("old")
    with fs_ops.fail_at(2), pytest.raises(StorageError):
        add_thoughts(source, target, derive, media_root=".")
    assert target.read_text() == "old"
