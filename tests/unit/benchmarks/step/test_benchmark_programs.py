"""Programs of benchmarks that no other test runs: a very small setting goes from the command to the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import module

SMALL = ["--repeats", "1", "--steps", "1", "--warmup", "0", "--sides", "shared_prefix"]


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("vs_trl", ["--prompts", "64", "--groups", "2", "--completions", "4"]),
        ("scaling", ["--axes", "group", "--group", "2", "3", "--base", "64", "2", "4"]),
    ],
)
def test_a_very_small_setting_runs(program: str, options: list[str], tmp_path: Path) -> None:
    where = ["--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")]
    done = module(f"benchmarks.step.{program}", *SMALL, *options, *where, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = json.loads((tmp_path / "out.json").read_text())["results"].values()
    assert [result["side"] for result in results] == ["shared_prefix"] * len(results) != []
    assert all(len(result["seconds"]) == 1 and result["update"] for result in results)
    assert "shared_prefix" in (tmp_path / "out.md").read_text()
