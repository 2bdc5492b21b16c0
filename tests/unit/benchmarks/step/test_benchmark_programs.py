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
        pytest.param("scaling", ["--axes", "group", "--group", "2", "3", "--base", "64", "2", "4"], marks=pytest.mark.slow),
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


@pytest.mark.slow
def test_a_step_of_distillation(tmp_path: Path) -> None:
    options = ["--prompt", "64", "--seen", "64", "16", "--group", "2", "--completion", "4", "--sides", "grpo", "distill", "distill_jsd"]
    where = ["--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")]
    done = module("benchmarks.step.distill", "--repeats", "1", "--steps", "1", "--warmup", "0", *options, *where, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = list(json.loads((tmp_path / "out.json").read_text())["results"].values())
    assert len(results) == 6
    assert all(len(result["seconds"]) == 1 and result["completion_tokens"] == 4 for result in results)
    tokens = [(result["cell"]["seen"], result["teacher_tokens"]) for result in results if result["side"] == "distill"]
    assert tokens[0][1] == tokens[1][1] > 64, "the teacher sees the same in both cells"
    assert "| 16, 64 | distill |" in (tmp_path / "out.md").read_text()
