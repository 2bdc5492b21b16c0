"""`vlmrl init`: every starter is a recipe without problems, its example row is a row, and nothing is overwritten."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.documents import commands, parse_vlmrl
from vlmrl import cli
from vlmrl.cli.init import STARTERS, starters, write_starter
from vlmrl.config.load import load
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError
from vlmrl.methods import method_doubts, method_problems


@pytest.mark.parametrize("task", starters())
def test_a_starter_is_accepted(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_starter(Path("mine.yaml"), "mine", task=task)
    text = Path("mine.yaml").read_text()
    assert "@" not in text
    out = load("mine", [], also=method_problems)
    assert out.config.run.name == "mine"
    assert method_doubts(out.config) == []
    row = re.search(r"^#   (\{.*?\})\nrun:", text, re.M | re.S)
    assert row is not None
    sample = parse_row(json.loads(row[1].replace("\n#", "")), source="row", media_root=".")
    assert sample.answer_type in text
    # what it tells the reader to type is a command, and what it offers as a comment is a recipe too
    for line in re.findall(r"^# .*?: {2,}(vlmrl .*)$", text, re.M):
        parse_vlmrl(commands(line)[0][1:])
    offered = re.sub(r"^( *)# (lora|answer_type|eval):", r"\1\2:", text, flags=re.M)
    assert offered.count("#") == text.count("#") - 3
    Path("more.yaml").write_text(offered)
    more = load("more", [], also=method_problems).config
    assert (more.model.lora is not None, more.eval.source is not None) == (True, True)


def test_all_the_users_tasks_have_one():
    assert starters() == ["grounding", "gui", "maths", "video_qa"]
    assert {path.suffix for path in STARTERS.iterdir()} == {".yaml"}


def test_what_is_given_stands_in_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "my rows" / "a: b.jsonl"
    rows.parent.mkdir()
    rows.write_text("")
    (tmp_path / "videos").mkdir()
    given = ["--data", "my rows/a: b.jsonl", "--media-root", "videos", "--model", "models/x, #1"]
    monkeypatch.setattr(sys, "argv", ["vlmrl", "init", "mine", "--task", "video_qa", *given])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert capsys.readouterr().out == "mine.yaml: written; next: vlmrl check mine.yaml\n"
    cfg = load("mine", []).config
    source = cfg.stages[0].source
    assert (cfg.model.path, cfg.data.root) == ("models/x, #1", "my rows")
    assert (source.path, source.media_root) == ("a: b.jsonl", str(tmp_path / "videos"))


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
        ("x", {"data": Path("no.jsonl")}, "--data: no file"),
        ("x", {"media_root": Path("no")}, "--media-root: no folder"),
    ):
        with pytest.raises(ConfigError, match=problem):
            write_starter(Path("x.yaml"), name, **{"task": "gui", **more})
    assert not Path("x.yaml").exists()
