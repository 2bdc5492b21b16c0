"""Starters of `vlmrl new`: every one is a recipe without problems, its example row is a row, and nothing is overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.documents import commands, parse_vlmrl
from vlmrl.cli import app
from vlmrl.config.load import load
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError
from vlmrl.extras.starter.recipe import write_starter
from vlmrl.extras.starter.tasks import KINDS, TASKS
from vlmrl.methods import method_doubts, method_problems


@pytest.mark.parametrize("task", TASKS)
def test_a_starter_is_accepted(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_starter(Path("mine.yaml"), "mine", task=task)
    text = Path("mine.yaml").read_text()
    assert "@" not in text
    assert "<SHOWN>" not in text
    out = load("mine", [], also=method_problems)
    assert out.config.run.name == "mine"
    assert method_doubts(out.config) == []
    row = re.search(r"^#   (\{.*?\})\nrun:", text, re.M | re.S)
    assert row is not None
    sample = parse_row(json.loads(row[1].replace("\n#", "")), source="row", media_root=".")
    assert sample.answer_type == KINDS[TASKS[task].kind].answer_type
    # what it tells the reader to type is a command, and what it offers as a comment is a recipe too
    for line in re.findall(r"^# .*?: {2,}(vlmrl .*)$", text, re.M):
        parse_vlmrl(commands(line)[0][1:])
    offered = re.sub(r"^( *)# (lora|answer_type|eval):", r"\1\2:", text, flags=re.M)
    assert offered.count("#") == text.count("#") - 3
    Path("more.yaml").write_text(offered)
    more = load("more", [], also=method_problems).config
    assert (more.model.lora is not None, more.eval.source is not None) == (True, True)


def test_the_list_names_every_starter():
    told = CliRunner().invoke(app, ["new", "--list"]).output
    assert [line.split()[0] for line in told.splitlines()] == list(TASKS)
    assert set(TASKS) >= {"grounding", "gui", "maths", "video_qa", "boxes", "points", "clicks"}


def test_what_is_given_stands_in_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "videos").mkdir()
    done = CliRunner().invoke(app, ["new", "mine", "--task", "video_qa", "--media-root", "videos", "--model", "models/x, #1"])
    assert done.exit_code == 0, done.output
    assert "mine.yaml: written" in done.output
    cfg = load("mine", []).config
    assert (cfg.model.path, cfg.data.root) == ("models/x, #1", ".")
    assert cfg.stages[0].source.media_root == str(tmp_path / "videos")


def test_comments_begin_in_one_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_starter(Path("mine.yaml"), "mine", task="maths", model="m # n")
    behind = [line.index(" # ") for line in Path("mine.yaml").read_text().splitlines() if re.match(r" *[a-z_]+: [^\s\"]+ +# ", line)]
    assert len(behind) > 8
    assert set(behind) == {34}
    assert load("mine", []).config.model.path == "m # n"


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = Path("mine.yaml")
    file.write_text("precious\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml is there already"):
        write_starter(file, "mine", task="gui")
    assert file.read_text() == "precious\n"
    for name, more, problem in (
        ("../x", {}, "not a plain name"),
        ("x", {"task": "math"}, "no starter for 'math'; did you mean 'maths'"),
        ("x", {"media_root": Path("no")}, "--media-root: no folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            write_starter(Path("x.yaml"), name, **{"task": "gui", **more})
    assert not Path("x.yaml").exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "give NAME and --data FILE"),
        (["x"], "give --data FILE, whose rows are read, or --task"),
        (["x", "--task", "maths", "--turns", "last"], "--turns says how rows are read: give them with --data"),
        (["x", "--task", "maths", "--held-out", "0"], "--held-out says how rows are read"),
        (["x", "frame=pixel", "--task", "boxes"], "frame=pixel says how rows are read"),
        (["x", "--list"], "--list and --examples go without NAME"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", *given])
    assert isinstance(done.exception, ConfigError)
    assert problem in str(done.exception)
    assert not list(tmp_path.iterdir())
