"""What `vlmrl train` says at its end: tables, what the run has come to, where things are and how to go on."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.evals.test_evals_levels import STAGES, make_run, without
from vlmrl.config.schema import Config
from vlmrl.evals.score.levels import level_table
from vlmrl.evals.score.table import level_cells
from vlmrl.evals.score.verdict import verdict
from vlmrl.extras.resume import closing
from vlmrl.extras.resume.closing import closing_lines
from vlmrl.run.results import show_results
from vlmrl.run.ui import Ui

SFT = {"kind": "sft", "name": "s", "source": {"path": "a"}, "steps": 1}


def config(**more: Any) -> Config:
    return Config.model_validate({"model": {"path": "m"}, "stages": [SFT], **more})


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing.shutil, "which", lambda name: f"/bin/{name}")


def test_a_run_says_where_its_things_are(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    assert closing_lines(tmp_path, config(eval={"suite": "canary"})) == [
        f"model:    {tmp_path}/final",
        f"report:   {tmp_path}/report.html",
        f"evaluate: vlmrl eval {tmp_path}/final --suite canary",
        f"look:     vlmrl view {tmp_path}",
    ]


def test_what_is_not_there_is_not_named_and_the_best_weights_are(tmp_path: Path) -> None:
    assert not any("report.html" in line or "best" in line for line in closing_lines(tmp_path, config()))
    (tmp_path / "best").mkdir()
    assert closing_lines(tmp_path, config())[0] == f"model:    {tmp_path}/final   (the best evaluation: {tmp_path}/best)"


@pytest.mark.parametrize(
    ("more", "suite"),
    [
        ({"data": {"root": "toy"}, "toy": {}}, "--suite toy_grounding"),
        ({"data": {"root": "toy"}, "toy": {"world": {"kind": "shell"}}}, "--suite toy_video"),
        ({"data": {"root": "toy"}, "toy": {"world": {"kind": "gui"}}}, "--suite NAME   (names: vlmrl list suites)"),
        ({"data": {"root": "toy"}, "toy": {"world": {"kind": "shell_stays"}}}, "--suite toy_video"),
        ({}, "--suite NAME   (names: vlmrl list suites)"),
        ({"data": {"root": "/my data"}, "eval": {"source": {"path": "val.parquet"}}}, "final --rows '/my data/val.parquet'"),
        ({"data": {"root": "/d"}, "eval": {"source": {"path": "rows/val.json"}}}, "final --rows /d/rows/val.json --data-root /d"),
        ({"eval": {"suite": "my suite.yaml"}}, "--suite 'my suite.yaml'"),
    ],
)
def test_the_next_command_names_a_suite_that_fits(tmp_path: Path, more: dict[str, Any], suite: str) -> None:
    (line,) = [line for line in closing_lines(tmp_path, config(**more)) if line.startswith("evaluate: ")]
    assert line.endswith(suite)


def test_commands_can_be_copied_where_the_program_is_not_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing.shutil, "which", lambda name: None)
    run = tmp_path / "a run"
    (line,) = [line for line in closing_lines(run, config(eval={"suite": "canary"})) if line.startswith("evaluate: ")]
    assert shlex.split(line.removeprefix("evaluate: ")) == [sys.executable, "-m", "vlmrl", "eval", f"{run}/final", "--suite", "canary"]


def said(path: Path, width: int = 160) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    show_results(path, Ui(console))
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


def test_labels_of_difficulty_give_one_table_with_the_stages_side_by_side_and_a_verdict_at_the_end(tmp_path: Path) -> None:
    lines = said(make_run(tmp_path / "run", STAGES))
    text = "\n".join(lines)
    assert "by how hard questions are" in text
    assert "by task and difficulty" not in text
    found = level_table(STAGES, 3)  # the seed of the run, as in the report
    assert found is not None
    for row in level_cells(found)[1:]:
        assert any([cell.strip() for cell in line.strip("│").split("│")] == row for line in lines), row
    assert " ".join(" ".join(lines[-4:]).split()).endswith(" ".join(verdict(STAGES, 3)))
    assert "(category=hard)" in text
    assert "difficulty=10" not in text, "paired differences by category are enough"
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("levels", [True, False])
def test_no_word_is_cut_or_folded(tmp_path: Path, width: int, levels: bool) -> None:
    stages = STAGES if levels else {name: without(rows, "category", "difficulty") for name, rows in STAGES.items()}
    run = make_run(tmp_path / "run", stages)

    def words(lines: list[str]) -> set[str]:
        return {word.strip(",:") for line in lines for word in re.split(r"[\s│┃]+", line) if not set(word) & set("─━┏└")}

    lines = said(run, width)
    assert max(map(len, lines)) <= width
    first_columns = {"part", "model", "models", "questions"}  # are not named where a row is a paragraph
    assert words(said(run, 400)) - first_columns <= words(lines)


def test_other_runs_keep_the_listing_by_parts(tmp_path: Path) -> None:
    text = "\n".join(said(make_run(tmp_path / "run", {name: without(rows, "category", "difficulty") for name, rows in STAGES.items()})))
    assert "by task and difficulty" in text
    assert "task=last" in text
    assert "by how hard questions are" not in text
    assert "questions accuracy" not in text
