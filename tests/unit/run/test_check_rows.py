"""`vlmrl check --rows`: a file of rows without a recipe."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vlmrl import cli
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.run.audit_report import AuditReport, SourceAudit
from vlmrl.run.check_rows import audit_rows, rows_config, told
from vlmrl.run.ui import Ui

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "check", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is kept of rows lies below it."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def read_rows(config: Config) -> AuditReport:
    return audit_rows(config, Ui(quiet=True), media=False)


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TALK = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A dog"}]
GOOD = {"messages": TALK, "images": ["a.png"]}


def test_rows_of_a_trainer_are_all_accounted_for(run: Run, tmp_path: Path) -> None:
    two = {"messages": [*TALK, *TALK], "images": ["a.png", "a.png"]}
    path = write(tmp_path, GOOD, {**GOOD, "width": 640, "height": 480}, two, {**GOOD, "images": ["none.png"]})
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    page = tmp_path / "page.html"
    code, out, err = run("--rows", str(path), "--answer-type", "exact_text", "--html", str(page))
    assert code == 65
    assert f"{path}: 4 rows, of the shape 'messages'" in out
    assert "good: 1, their gold answers are right by the parser" in out
    assert f"1 size, first: {path}:2: 'width/height' says 640x480, the file a.png (upright) is 60x40" in out
    assert f"1 turns, first: {path}:3: 'messages[2]' is a second question; set 'turns' of the source" in out
    assert f"1 missing, first: {path}:4: none.png: no such file under {tmp_path}" in out
    assert "3 of 4 rows cannot be used" in err
    assert "longest prompt" not in out
    assert "What is it?" in page.read_text()


def test_good_rows_are_ok(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [*TALK, *TALK], "images": ["a.png", "a.png"]})
    code, out, _ = run("--rows", str(path), "--answer-type", "exact_text", "--turns", "split", "--no-media", "task=chat")
    assert (code, "rows: ok (no media opened)" in out, f"{path}: 2 rows" in out) == (0, True, True)


def test_gold_answers_are_scored_where_nothing_stands_beside_them(tmp_path: Path) -> None:
    path = write(tmp_path, *({"q": "How many?", "a": answer, "t": kind} for answer, kind in (("7", "number"), ("B", "choice"))))
    mapping = "columns={prompt: q, answer: a, answer_type: t}"
    lines = told(read_rows(rows_config(path, [mapping], media_root=None, model=None)), counted=False)
    assert lines[:2] == [f"{path}: 2 rows, read by 'columns'", "good: 2, their gold answers are right by the parser that training uses"]
    own = {"id": "a", "task": "t", "answer_type": "number", "prompt": "Q", "answer": "many"}
    path = write(tmp_path, own, {**own, "id": "b", "answer": "7", "gt": {"count": 8}})
    lines = told(read_rows(rows_config(path, [], media_root=None, model=None)), counted=False)
    assert lines[0] == f"{path}: 2 rows, of the shape 'vlmrl'"
    assert lines[3].startswith(f"  2 answer, first: {path}:1: row 'a' ({path}:1): its answer cannot be scored")


def test_rows_of_no_known_shape_are_told_how_to_map_them(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "Q", "reply": "A", "answer": "A"})
    code, out, _ = run("--rows", str(path), "--answer-type", "exact_text", "--no-media")
    assert code == 65
    assert f"{path}: 1 rows, of no known shape" in out
    assert "like columns: {prompt: question, answer: answer}" in out
    code, out, _ = run("--rows", str(path), "--answer-type", "exact_text", "--no-media", "--columns", "{prompt: question, answer: reply}")
    assert (code, "good: 1" in out) == (0, True)


def screens(folder: Path, ask: str) -> Path:
    """Rows with columns of their own, whose answers are boxes in pixels."""
    rows: list[dict[str, Any]] = []
    for n in range(4):
        Image.new("RGB", (112, 84), (40 * n, 0, 0)).save(folder / f"{n}.png")
        rows.append({"picture": f"{n}.png", "instruction": ask, "bbox": [10 + n, 60, 109, 80]})
    return write(folder, *rows)


def test_rows_that_cannot_be_used_as_they_are_are_read_as_a_recipe_would_read_them(run: Run, tmp_path: Path) -> None:
    """Pictures as bytes in a Parquet file, and answers of a type that nobody says: 0 of 3 rows were good, with a setting to add."""
    rows: list[dict[str, Any]] = []
    for n in range(3):
        Image.new("RGB", (56, 56), (40 * n, 0, 0)).save(data := io.BytesIO(), "PNG")
        rows.append({"image": {"bytes": data.getvalue(), "path": None}, "problem": f"How many in {n}?", "solution": str(n)})
    pq.write_table(pa.Table.from_pylist(rows), path := tmp_path / "rows.parquet")
    code, out, err = run(str(path))
    assert (code, err) == (0, "")
    assert "were found in the rows" in out
    assert "media_folder: pictures  (pictures stand in the rows" in out
    assert "answer_type: number  (3 of 3 answers are numbers)" in out
    assert "good: 3" in out
    assert len(list((tmp_path / "pictures").rglob("*.png"))) == 3
    code, out, _ = run(str(path), "media_folder=elsewhere", "answer_type=exact_text")
    assert (code, "found in the rows" in out, "good: 3" in out) == (0, False, True)


def test_what_is_said_of_rows_stands_and_what_they_leave_open_is_asked(run: Run, tmp_path: Path) -> None:
    path = screens(tmp_path, "Click on it, and give its bounding box.")
    code, out, err = run(str(path))
    assert code == 65
    assert "4 unknown_shape" in out
    assert "4 of 4 rows cannot be used; " in err
    assert err.strip().endswith("say which: answer_type=bbox or answer_type=point")
    code, out, _ = run(str(path), "answer_type=bbox")
    assert code == 0
    assert "  columns: {prompt: instruction, answer: bbox, images: picture}  (" in out
    assert "  frame: pixel  (" in out
    assert "  answer_type: " not in out
    assert "good: 4" in out


def test_the_shape_of_rows_whose_pictures_have_no_folder_yet_is_not_denied() -> None:
    found = SourceAudit(path="rows.parquet", answer_format="think", used_by=["rows"], rows=1)
    found.reject("image_bytes", "rows.parquet:1: image_bytes: 'image' holds bytes; set 'media_folder' of the source")
    lines = told(AuditReport(sources=[found]), counted=False)
    assert lines[0] == "rows.parquet: 1 rows"
    found.reject("unknown_shape", "rows.parquet:2: unknown_shape: a row with the keys x")
    del found.reasons["image_bytes"]
    assert told(AuditReport(sources=[found]), counted=False)[0] == "rows.parquet: 1 rows, of no known shape"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["frmae=pixel"], "frmae: unknown key 'frmae'; did you mean 'frame'?"),
        (["turns=all"], "turns: expected"),
        (["columns={promt: q}"], "'promt' is no key that a column can be mapped to"),
        (["answer_type"], "'answer_type'"),
    ],
)
def test_wrong_settings_are_named_as_they_were_given(settings: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        rows_config(tmp_path / "rows.jsonl", settings, media_root=None, model=None)
    assert problem in str(caught.value)
    assert "stages.rows" not in str(caught.value)


def test_options_of_rows_without_rows(run: Run) -> None:
    assert run("--answer-type", "choice")[0] == 64
    assert run("--rows", "x.jsonl", "--no-data")[0] == 64


def test_a_share_of_a_file_and_media_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path, *({**GOOD, "id": str(n)} for n in range(5)))
    config = rows_config(path.with_name("rows.jsonl#2"), ["answer_type=exact_text"], media_root=tmp_path / "media", model="m")
    assert config.data.root == str(tmp_path / "media")
    assert (config.model.path, config.toy) == ("m", None)
    assert read_rows(config).rows == 2
