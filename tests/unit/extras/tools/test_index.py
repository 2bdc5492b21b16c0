"""What `vlmrl list` shows, kept in a file: the same as the registries say, made again when a source changes, never of plug-ins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from vlmrl import fs, protocols
from vlmrl.errors import StorageError
from vlmrl.extras.tools import index, known
from vlmrl.methods import described, listed_presets, registries

MADE: dict[str, Any] = {"algorithm": [{"name": "one"}]}


def once(calls: list[str]) -> Any:
    def make() -> dict[str, Any]:
        calls.append("made")
        return MADE

    return make


def test_the_index_is_what_the_registries_say() -> None:
    found = index.gathered()
    names = registries()
    assert list(found) == ["algorithm", *names]
    assert found["algorithm"] == listed_presets()
    for slot, registry in names.items():
        ours = [entry for entry in map(registry.get, registry.names()) if entry.ours]  # another test may have left a method
        assert found[slot] == [described(slot, entry) for entry in ours]


def test_it_is_made_once_and_again_when_a_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    assert index.kept(tmp_path, once(calls)) == MADE
    assert index.kept(tmp_path, once(calls)) == MADE
    assert calls == ["made"]
    monkeypatch.setattr(index, "sources_digest", lambda: "of other sources")
    index.kept(tmp_path, once(calls))
    assert calls == ["made", "made"]
    assert len(list(tmp_path.iterdir())) == 1


def test_every_file_that_decides_counts(tmp_path: Path) -> None:
    package, presets = tmp_path / "shipped" / "vlmrl", tmp_path / "presets"  # a folder of that name above the package is none of it
    for name in ("a.py", "zoo/loss/b.py", "cards.yaml", "evidence.json", "shipped/configs/c.yaml", "page.html"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x")
    presets.mkdir()
    (presets / "dapo.yaml").write_text("x")
    assert [name for name, _ in index._sources(package, presets)] == ["a.py", "zoo/loss/b.py", "cards.yaml", "evidence.json", "dapo.yaml"]


@pytest.mark.parametrize("damaged", ["{", "[]", '{"digest": 3}', "null"])
def test_a_damaged_file_is_made_again(damaged: str, tmp_path: Path) -> None:
    calls: list[str] = []
    index.kept(tmp_path, once(calls))
    (file,) = tmp_path.iterdir()
    file.write_text(damaged)
    assert index.kept(tmp_path, once(calls)) == MADE
    assert json.loads(file.read_text())["index"] == MADE
    assert calls == ["made", "made"]


def test_a_home_that_cannot_be_written_makes_it_slow_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str | Path, text: str) -> None:
        raise StorageError(f"{path}: no space left")

    monkeypatch.setattr(fs, "write_text", full)
    calls: list[str] = []
    assert index.kept(tmp_path / "home", once(calls)) == MADE
    assert index.kept(tmp_path / "home", once(calls)) == MADE
    assert calls == ["made", "made"]


def test_what_others_have_registered_is_not_in_it() -> None:
    @protocols.reward("of_a_cell")
    def of_a_cell(group: object, ctx: object) -> list[float]:
        """Of a notebook."""
        return []

    try:
        assert "of_a_cell" in registries()["reward"].names()
        assert "of_a_cell" not in [one["name"] for one in index.gathered()["reward"]]
        assert "of_a_cell" not in known.gathered()["reward"]
    finally:
        del protocols.reward._entries["of_a_cell"]


def test_plugins_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registries, not the file: and what a plug-in has does not get into it."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(index, "CACHE", tmp_path)
    monkeypatch.setattr(index, "gathered", lambda plugins=(): asked.append(tuple(plugins)) or MADE)
    index.listed(["mine"])
    assert (asked, os.listdir(tmp_path)) == ([("mine",)], [])
    index.listed()
    index.listed()
    assert asked == [("mine",), ()]
    assert len(os.listdir(tmp_path)) == 1
