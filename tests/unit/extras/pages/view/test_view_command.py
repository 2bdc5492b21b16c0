"""`vlmrl view`: a run or two in the browser, a folder of runs as a list, and a page as a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.viewed import make_run
from vlmrl import cli
from vlmrl.extras.pages.view import serve

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "view", *arguments])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


def test_one_run_and_two_are_served(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two = make_run(tmp_path / "runs" / "one"), make_run(tmp_path / "runs" / "two")
    asked: list[Any] = []
    monkeypatch.setattr(serve, "serve", lambda paths, port, say: (asked.append((list(paths), port)), say("http://here")))
    assert run(str(one)) == (0, "http://here\nCtrl-C ends it.\n", "")
    assert run(str(one), str(two), "--port", "7")[0] == 0
    assert asked == [([one], 0), ([one, two], 7)]
    code, _, err = run(str(one), "--json")
    assert code == 64
    assert "--json is for a folder of runs" in err


def test_a_folder_of_runs_is_listed(run: Run, tmp_path: Path):
    make_run(tmp_path / "runs" / "one")
    for words in ((), ("runs",)):
        code, out, _ = run(*words)
        assert code == 0
        assert "runs/one" in out
        assert "look at one: vlmrl view runs/one" in out
    assert json.loads(run("runs", "--json")[1])[0]["path"] == "runs/one"
    (tmp_path / "empty").mkdir()
    assert run("empty") == (0, "empty: no runs\n", "")
    assert run("none")[0] == 64


def test_what_is_no_run_and_holds_none_is_refused(run: Run, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.txt").write_text("x")
    code, _, err = run("other")
    assert code == 64
    assert "other" in err


def test_the_page_is_written_where_it_is_wanted(run: Run, tmp_path: Path):
    one = make_run(tmp_path / "runs" / "one")
    for to, file in ((str(one), one / "report.html"), ("mine.html", Path("mine.html")), ("new/folder", Path("new/folder/report.html"))):
        code, out, err = run(str(one), "--save", to)
        assert code == 0, err
        assert out == f"{file}\n"
        assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run("none", "--save", "x.html")[0] == 64
    code, _, err = run(str(one), str(one), "--save", "x.html")
    assert code == 64
    assert "vlmrl compare A B --out FOLDER" in err
