"""P16 on a tiny model: two processes with shards make the update of one, and a rank that fails is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.families import tiny_folder
from vlmrl.extras.families.conform import shards
from vlmrl.extras.families.conform.run import conform
from vlmrl.extras.families.conform.subject import open_subject


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have imported everything."""
    monkeypatch.setattr(shards, "CONTEXT", runs._CONTEXT)


def test_shards_of_short_convolutions_and_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = conform(open_subject(str(tiny_folder("lfm2_vl", tmp_path, monkeypatch)), ("image", "two", "text")), "lfm2_vl", ("P16",))
    assert found.failed() == []
    assert {check.case for check in found.checks} == {"repeat", "shared_prefix, recomputed", "shared_prefix, copies"}
    assert {check.what for check in found.checks if not check.control} == set(shards.LIMITS)


def test_a_rank_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank has no picture of its own, and nothing to pass through the tower while the first one passes its own."""
    tried = open_subject(str(tiny_folder("lfm2_vl", tmp_path, monkeypatch)), ("image", "text"))
    plain = shards._job

    def without_black(*args: Any) -> Any:
        return dataclasses.replace(plain(*args), black=None)

    monkeypatch.setattr(shards, "_job", without_black)
    (check,) = conform(tried, "lfm2_vl", ("P16",)).failed()
    assert "rank 1: AttributeError" in check.note
