"""benchmarks/turns/worlds_ahead.py: the same comes of actions whenever worlds begin; a very small setting goes to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.turns.worlds_ahead import WAYS
from tests.support.command import module


def test_what_came_of_the_actions_is_the_same_whenever_worlds_begin() -> None:
    given = ["--environment", "toy_desk", "--groups", "1", "--head", "0.5", "--workers", "1"]
    rows = []
    for way in WAYS:
        done = module("benchmarks.turns.worlds_ahead", *given, "--alone", way)
        assert done.returncode == 0, done.stdout + done.stderr
        rows.append(done.stdout.strip().split(" | "))
    assert [row[0] for row in rows] == list(WAYS)
    assert [row[4] for row in rows] == ["8", "8", "1", "8", "1"], "worlds that began"
    assert len({row[5] for row in rows}) == 1, rows


@pytest.mark.slow
def test_a_very_small_setting_writes_its_section(tmp_path: Path) -> None:
    """The program itself compares the ends of the runs."""
    page = tmp_path / "page.md"
    given = ["--environment", "toy_desk", "--steps", "1", "--repeats", "1", "--write", str(page)]
    done = module("benchmarks.turns.worlds_ahead", *given, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worlds that began" in page.read_text()
    assert "* command: `python -m benchmarks.turns.worlds_ahead" in page.read_text()
