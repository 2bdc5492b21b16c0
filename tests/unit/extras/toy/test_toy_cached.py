"""The cache of generated worlds: listed with sizes, removed by name or age, and nothing beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.toy.cached import chosen, entries

DAY = 86400.0


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two worlds and a base model, beside things that are not ours."""
    for name, size, day in (("world-0123abcd", 3000, 10), ("world-0123abcd-train-test", 200, 40), ("base-ff00", 5000, 1)):
        file = tmp_path / name / "inner" / "file"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * size)
        os.utime(file, (day * DAY, day * DAY))
    (tmp_path / "world-notes").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "world-abc").symlink_to(tmp_path / "mine")
    return tmp_path


def test_entries_have_sizes_and_times(cache: Path) -> None:
    found = entries(cache)
    assert [(e.path.name, e.bytes, e.files, e.written / DAY) for e in found] == [
        ("base-ff00", 5000, 1, 1.0),
        ("world-0123abcd", 3000, 1, 10.0),
        ("world-0123abcd-train-test", 200, 1, 40.0),
    ]
    assert entries(cache / "none") == []


def test_those_that_are_chosen(cache: Path) -> None:
    found = entries(cache)
    assert [e.path.name for e in chosen(found, [], older_than=25.0, now=41 * DAY)] == ["base-ff00", "world-0123abcd"]
    assert [e.path.name for e in chosen(found, ["base-ff00"], older_than=None, now=0.0)] == ["base-ff00"]
    with pytest.raises(ConfigError, match="mine: not in the cache; there are: base-ff00"):
        chosen(found, ["mine"], older_than=None, now=0.0)


def test_the_commands(cache: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        words = ["list", "caches"] if arguments[0] == "list" else ["tools", "cache", arguments[0]]
        done = CliRunner().invoke(app, [*words, *arguments[1:], "--cache", str(cache)])
        return done.exit_code, done.output

    code, text = run("list")
    assert code == 0
    assert "5.0 kB" in text
    assert "8.2 kB  in" in text
    assert [entry["bytes"] for entry in json.loads(run("list", "--json")[1])] == [5000, 3000, 200]
    assert "would go: base-ff00  5.0 kB" in run("clean", "base-ff00", "--dry-run")[1]
    assert (cache / "base-ff00").exists()
    assert "removed: base-ff00" in run("clean", "base-ff00")[1]
    assert not (cache / "base-ff00").exists()
    assert run("clean")[0] != 0
    assert "3.2 kB in 2 folders" in run("clean", "--all")[1]
    assert sorted(p.name for p in cache.iterdir()) == ["LOCK", "mine", "world-abc", "world-notes"]


def test_what_audits_of_rows_found_is_of_the_cache(cache: Path) -> None:
    (cache / "rows-12ab").mkdir()
    (cache / "rows-12ab" / "chunks").write_bytes(b"x" * 7000)
    assert next((e.path.name, e.kind, e.bytes) for e in entries(cache)) == ("rows-12ab", "rows of Python, and what audits found", 7000)
