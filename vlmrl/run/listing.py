"""The runs of a folder: how far each is, and whether a process is at it. Reads files only; a run that is being trained is not disturbed."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that are read; a line is far shorter."""
NO_STAGES = ("base", "run")
"""What lines of metrics say in place of a stage: of the model before training, and of the whole run when it has ended. No recipe may call a
stage so."""
LOCKS = Path("/proc/locks")
_HOLDER = re.compile(r"host (?P<host>.+), pid (?P<pid>\d+), since (?P<since>.+)")

Status = Literal["finished", "running", "stopped", "elsewhere"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLine:
    """A run at one moment."""

    path: Path
    status: Status
    """`elsewhere`: it was last started on another machine, whose locks cannot be seen from here."""
    holder: str | None
    """Of a run at work: host, process, and since when."""
    stage: str | None
    """The last one that its metrics have a line of (`stage_of`); None before the first."""
    step: int | None
    """Within the stage."""
    steps: int | None
    """Of the stage, by the recipe."""
    wall: float | None
    """When the last line was written, in seconds since 1970."""
    model: str | None
    """What it trains, by the recipe."""
    starts: int
    """How often it was started."""
    problem: str | None = None
    """A file of it that cannot be read."""

    def json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name in self.__slots__ for value in (getattr(self, name),)}


def runs_in(root: Path) -> list[RunLine]:
    """The run in `root`, or those in the folders below it, the last written first; runs without a line of metrics come last."""
    folders = [root] if is_run(root) else [path for path in sorted(root.iterdir()) if path.is_dir() and is_run(path)]
    return sorted((line_of(path) for path in folders), key=lambda line: -(line.wall or 0.0))


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run (`run.rundir`)."""
    return (path / "run.json").is_file() and (path / "config.yaml").is_file()


def line_of(path: Path) -> RunLine:
    """One run. What cannot be read is in `problem`, and the rest is said all the same."""
    problems: list[str] = []
    record = mapping(path / "run.json", problems)
    config = mapping(path / "config.yaml", problems)
    history: Any = record.get("history") or []
    lines = list(last_lines(path / "metrics.jsonl"))
    at = next((line for line in lines if stage_of(line) is not None), {})
    stage = stage_of(at)
    stages: Any = config.get("stages") or []
    steps = next((one.get("steps") for one in stages if isinstance(one, dict) and one.get("name") == stage), None)
    model: Any = config.get("model") or {}
    status, holder = _status(path)
    return RunLine(
        path=path,
        status=status,
        holder=holder,
        stage=stage,
        step=at.get("step"),
        steps=steps,
        wall=lines[0].get("wall") if lines else None,
        model=model.get("path") if isinstance(model, dict) else None,
        starts=len(history),
        problem="; ".join(problems) or None,
    )


def stage_of(line: Mapping[str, Any]) -> str | None:
    """The stage that a line of metrics is about; None for one about no stage of the recipe (`NO_STAGES`)."""
    stage = line.get("stage")
    return None if stage is None or stage in NO_STAGES else str(stage)


def last_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines at the end of a file of JSON lines, the last first, without reading all of it.

    A line that is being written, or that a killed process left unfinished, does not count.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        data = file.read()
    for line in reversed(data[: data.rfind(b"\n") + 1].splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def mapping(path: Path, problems: list[str]) -> dict[str, Any]:
    """A YAML or JSON file as a mapping; what is wrong with one that cannot be read is added to `problems`. By libyaml, where it is there: a
    folder has many runs, and Python's own reader takes seven times as long."""
    try:
        value = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_bytes()).get_single_data()
    except (OSError, yaml.YAMLError, ValueError) as error:
        problems.append(f"{path.name}: {str(error).splitlines()[0]}")
        return {}
    return value if isinstance(value, dict) else {}


def _status(path: Path) -> tuple[Status, str | None]:
    lock = path / "LOCK"
    said = _HOLDER.search(lock.read_text(encoding="utf-8", errors="replace")) if lock.is_file() else None
    if said is not None and said["host"] == socket.gethostname() and held(lock, int(said["pid"])):
        return "running", f"host {said['host']}, pid {said['pid']}, since {said['since']}"
    if (path / "FINISHED").exists():
        return "finished", None
    if said is not None and said["host"] != socket.gethostname():
        return "elsewhere", f"host {said['host']}, pid {said['pid']}, since {said['since']}"
    return "stopped", None


def held(lock: Path, pid: int, locks: Sequence[str] | None = None) -> bool:
    """Whether a process holds the `flock` of a file, by the kernel's list: trying the lock would get in the way of a run that starts.

    Args:
        locks: lines of /proc/locks; None reads them.
    """
    inode = lock.stat().st_ino
    lines = locks if locks is not None else LOCKS.read_text().splitlines() if LOCKS.is_file() else []
    for line in lines:
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 08:01:393219 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[4] == str(pid) and words[5].rpartition(":")[2] == str(inode):
            return True
    return False
