"""`vlmrl view`: folders in the browser, their runs as a list, and copies as a site or as one file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.viewed import make_run
from vlmrl import cli
from vlmrl.extras.pages.view import command

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


def test_folders_are_served(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two = make_run(tmp_path / "runs" / "one"), make_run(tmp_path / "runs" / "two")
    asked: list[Any] = []
    monkeypatch.setattr(command, "serve", lambda paths, port, say: (asked.append((list(paths), port)), say("http://here")))
    assert run(str(one)) == (0, "http://here\nCtrl-C ends it.\n", "")
    assert run(str(one), str(two), "--port", "7")[0] == 0
    assert run()[0] == 0
    assert asked == [([one], 0), ([one, two], 7), ([Path("runs")], 0)]


def test_where_there_is_nothing_to_look_at_that_is_refused(run: Run, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.txt").write_text("x")
    for name, words in (("other", "nothing to look at"), ("none", "no such folder")):
        for more in ((), ("--save", "x.html")):
            code, _, err = run(name, *more)
            assert code == 64
            assert words in " ".join(err.split())


def test_a_copy_is_written_where_it_is_wanted(run: Run, tmp_path: Path):
    one = make_run(tmp_path / "runs" / "one")
    for to, file in ((str(one), one / "report.html"), ("mine.html", Path("mine.html")), ("new/site", Path("new/site/index.html"))):
        code, out, err = run(str(one), "--save", to)
        assert code == 0, err
        assert out == f"{file}\n"
        assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "new" / "site" / "data" / "run" / "one.js").is_file()
    code, out, _ = run("runs", "--save", "all.html")
    assert (code, out) == (0, "all.html\n")


def test_a_run_with_a_link_to_elsewhere_is_not_copied(run: Run, tmp_path: Path):
    one = make_run(tmp_path / "runs" / "one")
    (one / "metrics.jsonl").rename(tmp_path / "outside")
    (one / "metrics.jsonl").symlink_to(tmp_path / "outside")
    code, _, err = run(str(one), "--save", "x.html")
    assert code == 74
    assert "one: a file in it is a link to elsewhere, so it is not read" in " ".join(err.split())
    assert not (tmp_path / "x.html").exists()
