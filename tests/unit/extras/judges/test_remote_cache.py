"""judges.cache: what survives, what is cut away, what is never believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.extras.judges.cache import VerdictCache


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_verdicts_come_back_after_a_restart(tmp_path: Path) -> None:
    first = VerdictCache(tmp_path / "judges")
    first.put("a", {"score": 0.1})
    first.put("b", {"label": "YES", "items": [{"id": "1", "score": 1.0}]})
    first.put("a", {"score": 0.9})  # the first one stays
    first.close()
    second = VerdictCache(tmp_path / "judges")
    assert (second.get("a"), second.get("b"), second.get("c")) == (
        {"score": 0.1},
        {"label": "YES", "items": [{"id": "1", "score": 1.0}]},
        None,
    )
    assert (len(second), second.dropped_bytes, second.damaged) == (2, 0, 0)
    assert [line["key"] for line in lines(tmp_path / "judges" / "verdicts.rank-0.jsonl")] == ["a", "b"]


def test_the_folder_is_made_with_the_first_verdict(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "run" / "judges")
    assert cache.get("a") is None
    cache.close()
    assert list(tmp_path.iterdir()) == []
    cache.put("a", {"score": 0.5})
    cache.close()
    assert VerdictCache(tmp_path / "run" / "judges").get("a") == {"score": 0.5}


def test_ranks_read_each_other_and_write_their_own(tmp_path: Path) -> None:
    one, two = VerdictCache(tmp_path, 0), VerdictCache(tmp_path, 1)
    one.put("a", {"score": 0.0})
    two.put("b", {"score": 1.0})
    assert two.get("a") is None  # only what was there before
    again = VerdictCache(tmp_path, 1)
    assert (again.get("a"), again.get("b")) == ({"score": 0.0}, {"score": 1.0})
    assert len(lines(tmp_path / "verdicts.rank-1.jsonl")) == 1


def test_a_torn_tail_is_cut_away_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.rank-0.jsonl"
    cache = VerdictCache(tmp_path)
    cache.put("a", {"score": 0.25})
    cache.put("b", {"score": 0.5})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(len(whole)):
        fs.write_bytes(path, whole[:size])
        opened = VerdictCache(tmp_path)
        assert len(opened) == (size >= first)
        assert opened.dropped_bytes == (size - first if size >= first else size)
        opened.put("c", {"score": 1.0})
        assert [record["key"] for record in lines(path)] == [*(["a"] if size >= first else []), "c"]
    assert len(VerdictCache(tmp_path)) == 2


def test_every_flipped_byte_of_a_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.rank-0.jsonl"
    cache = VerdictCache(tmp_path)
    cache.put("a", {"score": 0.25})
    cache.put("b", {"score": 0.5})
    whole = path.read_bytes()
    end = whole.index(b"\n")
    for place in range(end):
        fs.write_bytes(path, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        opened = VerdictCache(tmp_path)
        assert opened.get("b") == {"score": 0.5}
        assert opened.get("a") in (None, {"score": 0.25})
        assert set(opened._verdicts) <= {"a", "b"}
        assert opened.damaged == (opened.get("a") is None)


def test_another_ranks_torn_tail_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "verdicts.rank-1.jsonl"
    fs.write_bytes(other, b'{"crc": "0')
    opened = VerdictCache(tmp_path, 0)
    assert (len(opened), other.read_bytes()) == (0, b'{"crc": "0')


def test_not_json_and_nan_are_left_out(tmp_path: Path) -> None:
    fs.write_bytes(
        tmp_path / "verdicts.rank-0.jsonl", b'[]\n{"crc": "0", "key": "a", "verdict": {"score": NaN}}\n' + b"[" * 100000 + b"\n\xff\n"
    )
    opened = VerdictCache(tmp_path)
    assert (len(opened), opened.damaged) == (0, 4)
    with pytest.raises(ValueError):
        opened.put("a", {"score": float("nan")})
    assert len(opened) == 0


def test_durable_within_a_second_and_at_the_end(tmp_path: Path) -> None:
    now = [0.0]
    cache = VerdictCache(tmp_path, clock=lambda: now[0])
    with fs_ops.record() as log:
        cache.put("a", {"score": 0.0})
    assert [op.kind for op in log] == ["create", "write", "fsync_dir"]
    now[0] = 1.0
    with fs_ops.record() as log:
        cache.put("b", {"score": 0.0})
    assert [op.kind for op in log] == ["write", "fsync"]
    with fs_ops.record() as log:
        cache.close()
    assert log == []
    cache.put("c", {"score": 0.0})
    with fs_ops.record() as log:
        cache.close()
    assert [op.kind for op in log] == ["fsync"]


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put("a", {"score": 0.5})
    with fs_ops.fail_at(1), pytest.raises(StorageError):
        cache.put("b", {"score": 0.5})
    assert cache.get("b") is None
    cache.put("b", {"score": 0.75})
    assert VerdictCache(tmp_path).get("b") == {"score": 0.75}


def test_in_memory() -> None:
    cache = VerdictCache(None)
    cache.put("a", {"score": 0.5})
    cache.close()
    assert cache.get("a") == {"score": 0.5}


@settings(max_examples=25)
@given(st.dictionaries(st.text(), st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False) | st.text()), max_size=5))
def test_any_text_and_number_comes_back(tmp_path_factory: pytest.TempPathFactory, verdicts: dict[str, dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cache = VerdictCache(folder)
    for key, verdict in verdicts.items():
        cache.put(key, verdict)
    again = VerdictCache(folder)
    assert {key: again.get(key) for key in verdicts} == verdicts
    assert again.damaged == 0
