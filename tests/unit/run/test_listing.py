"""The runs of a folder: their status by the kernel's locks, their step by the end of their metrics."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

import pytest

from vlmrl.config.names import RESERVED
from vlmrl.extras.tools.runs import ago
from vlmrl.run.listing import NO_STAGES, TAIL, held, last_lines, line_of, runs_in, stage_of

CONFIG = "model: {path: m}\nstages:\n- {name: sft, steps: 3}\n- {name: rl, steps: 40}\n"


def make(root: Path, name: str, lines: list[dict], *, finished: bool = False, lock: str = "") -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"schema": 1, "fixed": {}, "history": [{"wall": 1.0}, {"wall": 2.0}]}))
    (path / "config.yaml").write_text(CONFIG)
    (path / "LOCK").write_text(lock)
    if lines:
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (path / "FINISHED").write_text("{}")
    return path


def test_runs_of_a_folder(tmp_path: Path):
    make(tmp_path, "old", [{"stage": "sft", "step": 2, "wall": 100.0}, {"stage": "rl", "step": 17, "wall": 200.0}])
    ended = [{"stage": "base", "step": 0}, {"stage": "rl", "step": 40, "wall": 290.0}, {"stage": "run", "step": 40, "wall": 300.0}]
    make(tmp_path, "done", ended, finished=True)
    make(tmp_path, "new", [])
    (tmp_path / "no_run").mkdir()
    found = runs_in(tmp_path)
    assert [(line.path.name, line.status, line.stage, line.step, line.steps) for line in found] == [
        ("done", "finished", "rl", 40, 40),
        ("old", "stopped", "rl", 17, 40),
        ("new", "stopped", None, None, None),
    ]
    assert {(line.model, line.starts, line.problem) for line in found} == {("m", 2, None)}
    assert runs_in(tmp_path / "old") == [found[1]]
    assert json.loads(json.dumps(found[0].json()))["path"] == str(tmp_path / "done")


def test_a_run_at_work_holds_its_lock(tmp_path: Path):
    """With a lock that this process holds, as a run does; released, the run is stopped."""
    said = f"host {socket.gethostname()}, pid {os.getpid()}, since 2026-01-02 03:04:05 UTC\n"
    path = make(tmp_path, "a", [], lock=said)
    with (path / "LOCK").open("r+") as file:
        assert line_of(path).status == "stopped"
        fcntl.flock(file, fcntl.LOCK_EX)
        line = line_of(path)
        assert (line.status, line.holder) == ("running", said.strip())
    assert line_of(path).status == "stopped"
    elsewhere = make(tmp_path, "b", [], lock="host another-machine, pid 1, since then\n")
    assert line_of(elsewhere).status == "elsewhere"
    (elsewhere / "FINISHED").write_text("{}")
    assert line_of(elsewhere).status == "finished"


def test_a_line_of_the_kernels_list(tmp_path: Path):
    file = tmp_path / "LOCK"
    file.touch()
    inode = file.stat().st_ino
    assert held(file, 7, [f"1: FLOCK  ADVISORY  WRITE 7 08:01:{inode} 0 EOF"])
    for other in (f"1: POSIX  ADVISORY  WRITE 7 08:01:{inode} 0 EOF", f"1: FLOCK  ADVISORY  WRITE 8 08:01:{inode} 0 EOF"):
        assert not held(file, 7, [other])
    assert not held(file, 7, [f"1: FLOCK  ADVISORY  WRITE 7 08:01:{inode}1 0 EOF", "", "1: -> FLOCK"])


def test_the_last_whole_line(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    assert list(last_lines(path)) == []
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert list(last_lines(path)) == [{"step": 2}, {"step": 1}]
    path.write_bytes(b'{"step": 1}')
    assert list(last_lines(path)) == []
    path.write_bytes(b'{"step": 0}\n' + b"x" * TAIL + b'\n{"step": 3}\n')
    assert list(last_lines(path)) == [{"step": 3}]


def test_lines_about_no_stage(tmp_path: Path):
    """The model before training is no stage, and neither is the whole run: the last line of a run that has ended is about it."""
    assert set(NO_STAGES) <= set(RESERVED)
    assert [stage_of({"stage": name}) for name in ("base", "rl", "run")] == [None, "rl", None]
    path = make(tmp_path, "a", [{"stage": "base", "step": 0, "wall": 5.0}])
    line = line_of(path)
    assert (line.stage, line.step, line.steps, line.wall) == (None, None, None, 5.0)


def test_a_damaged_file_is_said(tmp_path: Path):
    path = make(tmp_path, "a", [{"stage": "rl", "step": 1, "wall": 1.0}])
    (path / "config.yaml").write_text("stages: [")
    line = line_of(path)
    assert line.problem is not None
    assert line.problem.startswith("config.yaml: ")
    assert (line.stage, line.step, line.steps) == ("rl", 1, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (3600, "1 h ago"), (90000, "25 h ago"), (200000, "2 days ago")],
)
def test_how_long_ago(seconds: float, text: str):
    assert ago(seconds) == text
