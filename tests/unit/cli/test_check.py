"""`vlmrl check`: what it takes its argument for, what belongs to what, and that 80 columns are enough."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlmrl import cli
from vlmrl.cli import check as module
from vlmrl.cli.check import _kind, _lines
from vlmrl.errors import ConfigError
from vlmrl.run.audit_report import AuditReport, SourceAudit

Run = Callable[..., tuple[int, str, str]]
RECIPE = "model: {path: somewhere}\nstages:\n  - {kind: sft, name: s, source: {path: a.jsonl}, steps: 1}\n"
OWN = {"id": "a", "task": "t", "answer_type": "exact_text", "prompt": "Q", "answer": "A"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "check", *arguments])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


def test_what_its_argument_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "rows", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "r.yaml").write_text(RECIPE)
    (tmp_path / "rows.txt").write_text("{}\n")
    found = {
        None: "machine",
        "toy_video": "recipe",
        "r.yaml": "recipe",
        "none.yaml": "recipe",
        "here/none": "recipe",
        "model": "model",
        "Qwen/Qwen2.5-VL-3B-Instruct": "model",
        "rows": "rows",
        "rows.txt": "rows",
        "none.parquet": "rows",
        "none.jsonl#500": "rows",
        "org/name@train": "rows",
    }
    assert {what: _kind(what, False, False) for what in found} == found
    assert _kind("model", True, False) == "machine"
    assert _kind("qwen3_5", False, True) == "model"


def test_a_run_is_told_what_of_it_can_be_checked(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"a run; its recipe is .*config\.yaml, its model .*final; vlmrl view .* shows it"):
        _kind(str(tmp_path), False, False)


def test_rows_need_no_option(run: Run, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(OWN) + "\n")
    for words in (["rows.jsonl"], ["--rows", "rows.jsonl"]):
        code, out, err = run(*words, "--no-media")
        assert code == 0, err
        assert "1 rows, of the shape 'vlmrl'" in out
        assert "rows: ok (no media opened)" in out
    code, _, err = run("rows.jsonl", "--no-media", "frmae=pixel")
    assert code == 64
    assert "did you mean 'frame'?" in err


def test_a_model_is_tried_and_the_machine_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(module, "doctor", asked.append)
    monkeypatch.setattr(module, "extra", lambda name: lambda *given, **how: asked.append((name.rpartition(".")[2], *given, how)))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert run()[0] == run("model")[0] == run("model", "--machine")[0] == run("qwen3_5", "--tiny", "--only", "P1", "--json")[0] == 0
    plain = {"tiny": False, "only": None, "engine": None, "as_json": False}
    tiny = {"tiny": True, "only": "P1", "engine": None, "as_json": True}
    assert asked == [None, ("conform", "model", plain), "model", ("conform", "qwen3_5", tiny)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["r.yaml", "--answer-type", "choice"], "--answer-type: not for a recipe (r.yaml)"),
        (["rows.jsonl", "--gpu", "h100"], "--gpu: not for rows (rows.jsonl)"),
        (["--rows", "rows.jsonl", "--print"], "--print: not for rows"),
        (["qwen3_5", "--tiny", "run.seed=1"], "run.seed=1: not for a model (qwen3_5)"),
        (["--html", "x.html"], "--html: not for the machine (this one)"),
        (["rows.jsonl", "--no-media", "--html", "x.html"], "--no-media goes without --html"),
    ],
)
def test_what_does_not_belong_is_refused(run: Run, tmp_path: Path, words: list[str], said: str):
    (tmp_path / "r.yaml").write_text(RECIPE)
    code, _, err = run(*words)
    assert code == 64
    assert said in " ".join(err.split())


def audit() -> SourceAudit:
    found = SourceAudit(path="a/rather/long/folder/of/rows/with_a_name.jsonl", answer_format="think", used_by=["sft", "rl"], rows=9)
    for n in range(7):
        found.reject("unknown_shape", f"f:{n}: unknown_shape: a row with the keys x has no known shape")
    found.reject("missing", "f:8: missing: a.png")
    found.accept(12)
    return found


def test_equal_messages_are_told_once_with_their_number():
    assert audit().examples == [
        "f:0: unknown_shape: a row with the keys x has no known shape (and 6 more with the same)",
        "f:8: missing: a.png",
    ]


def test_messages_beyond_the_shown_are_counted_only():
    found = SourceAudit(path="f", answer_format="think", used_by=[])
    for n in range(40):
        found.reject("size", f"f:{n}: size: of row {n % 20}")
    assert len(found.examples) == 5
    assert found.reasons["size"] == 40


def test_eighty_columns_are_enough(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from vlmrl import api
    from vlmrl.run import ui

    report = AuditReport(sources=[audit()], notes=["1 row could not be compared"])
    monkeypatch.setattr(api, "audited", lambda *_, **__: report)
    monkeypatch.setattr(ui, "LOG_WIDTH", 80)
    module._audit(None, None)  # pyright: ignore[reportArgumentType]
    out = capsys.readouterr().out.splitlines()
    assert out == [*_lines(audit()), "1 row could not be compared"]
    assert out[0] == "a/rather/long/folder/of/rows/with_a_name.jsonl: think, used by sft, rl"
    assert out[1:4] == ["  9 rows, 1 good, longest prompt 12 tokens", "  left out: 1 missing", "  left out: 7 unknown_shape"]
    monkeypatch.setattr(ui, "LOG_WIDTH", 160)
    module._audit(None, None)  # pyright: ignore[reportArgumentType]
    assert "│ think " in capsys.readouterr().out
