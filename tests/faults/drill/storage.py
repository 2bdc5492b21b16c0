"""Area 2: files of a run damaged, data changed between two starts, disks that are full or read-only, two processes, a finished run."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.drill.result import Drill, Ended, Result, judge, outcome, run
from tests.faults.drill.resume import Config, flipped
from tests.support import runs

DAMAGE, CHANGED, DISK = "2 flip, delete, cut a file of the run", "2 content changed between starts", "2 disk, locks, finished"
BEFORE_LAST = "step.before_update@7:kill"
"""In the last step of the second stage: generated groups wait in the journal, and the first stage is exported."""
DERIVED = ("config.yaml", "report.html", "environment.json", "quarantine.jsonl")
"""Files that decide nothing: a run that goes on without them, or writes them again, does right."""
Change = Callable[[bytes], bytes | None]
"""What a file holds after the damage; None: it is gone."""
KINDS: dict[str, Change] = {
    "flipped": lambda raw: flipped(raw) if raw else raw,
    "deleted": lambda raw: None,
    "cut": lambda raw: raw[: len(raw) // 2],
}


def _copied(drill: Drill, config: Config, name: str) -> Config:
    """A copy of a run, with a root of its own."""
    mine = copy.deepcopy(config)
    mine["run"]["root"] = str(drill.root(name))
    shutil.copytree(runs.run_dir(config), runs.run_dir(mine))
    return mine


def damaged_files(drill: Drill) -> Iterator[Result]:
    """Each file of a killed run flipped, deleted, cut; then the same of a finished run, of which nothing may be lost in silence."""
    whole = runs.small_config(*drill.files, drill.root("damage-whole"))
    assert run(whole).code == 0
    expected = outcome(whole)
    killed = runs.small_config(*drill.files, drill.root("damage-killed"))
    assert run(killed, BEFORE_LAST).code == -9
    chance = random.Random(drill.seed)
    for config, state in ((killed, "killed"), (whole, "finished")):
        folder = runs.run_dir(config)
        cases = [(path.relative_to(folder), kind) for path in sorted(folder.rglob("*")) if path.is_file() for kind in KINDS]
        cases = [(path, kind) for path, kind in cases if path.name != "LOCK" and (path.parts[0] != "eval" or "frames" not in path.parts)]
        if state == "finished":
            cases = [case for case in cases if case[0].parts[0] in ("final", "stages", "eval", "FINISHED")]
        for number, (path, kind) in enumerate(chance.sample(cases, min(len(cases), drill.choose(4, 1000)))):
            mine = _copied(drill, config, f"damage-{state}-{number}")
            victim = runs.run_dir(mine) / path
            original = victim.read_bytes()
            data = KINDS[kind](original)
            victim.unlink()
            if data is not None:
                victim.write_bytes(data)
            case = f"{state}: {path} {kind}"
            ended = run(mine)
            found = judge(DAMAGE, case, ended, mine, None if path.name in DERIVED else expected)
            told = [line for line in ended.said.splitlines() if path.name in line]
            if found.verdict == "silent" and told:
                found = Result(area=DAMAGE, case=case, verdict="clear", note=f"goes on, and says: {told[0][:160]}")
            whole_again = path.name == "FINISHED" or (victim.exists() and victim.read_bytes() == original)
            if state == "finished" and found.verdict == "right" and not whole_again:
                found = Result(area=DAMAGE, case=case, verdict="silent", note="exit 0, and the file is still damaged")
            yield found
            shutil.rmtree(mine["run"]["root"])


def _rows(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


def _videos(world: Path) -> None:
    """Every training video replaced by the next one that is as long: another length is refused for the times that it makes wrong."""
    by_length: dict[float, list[Path]] = {}
    for line in (world / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        by_length.setdefault(row["meta"]["duration"], []).append(world / row["video"])
    for files in by_length.values():
        data = [path.read_bytes() for path in files]
        for path, other in zip(files, data[1:] + data[:1], strict=True):
            path.write_bytes(other)


def _questions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"prompt": "Please say: " + row["prompt"]} for row in rows]


def _gold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The gold answer of each row is that of the next one."""
    return [row | {key: other[key] for key in ("answer", "gt") if key in row} for row, other in zip(rows, rows[1:] + rows[:1], strict=True)]


def _flip(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes()))


CONTENT: dict[str, Callable[[Path, Path], None]] = {
    "videos": lambda world, folder: _videos(world),
    "questions": lambda world, folder: _rows(world / "train.jsonl", _questions),
    "gold answers": lambda world, folder: _rows(world / "train.jsonl", _gold),
    "held-out gold answers": lambda world, folder: _rows(world / "test.jsonl", _gold),
    "order of rows": lambda world, folder: _rows(world / "train.jsonl", lambda rows: rows[::-1]),
    "one row less": lambda world, folder: _rows(world / "train.jsonl", lambda rows: rows[:-1]),
    "a bit of the exported stage": lambda world, folder: _flip(folder / "stages" / "sft" / "model.safetensors"),
    "the exported stage is gone": lambda world, folder: shutil.rmtree(folder / "stages" / "sft"),
}


def changed_content(drill: Drill) -> Iterator[Result]:
    """What a run was started with changes behind the same names. Only a refusal is right, or the same bits where it changed nothing; a
    run that says at its start that it goes on with other data counts as a clear error too."""
    for number, (name, change) in enumerate(list(CONTENT.items())[: drill.choose(3, 100)]):
        world = drill.root(f"content-{number}") / "world"
        shutil.copytree(drill.files[1], world)
        config = runs.small_config(drill.files[0], world, drill.root(f"content-{number}-run"))
        control = runs.small_config(drill.files[0], world, drill.root(f"content-{number}-control"))
        if run(control).code != 0 or run(config, BEFORE_LAST).code != -9:
            yield Result(area=CHANGED, case=name, verdict="crash", note="the undisturbed run does not end")
            continue
        expected = outcome(control)
        change(world, runs.run_dir(config))
        ended = run(config)
        found = judge(CHANGED, name, ended, config, expected)
        notes = [line for line in ended.said.splitlines() if "warning" in line or "changed" in line]
        if found.verdict == "silent" and notes:
            found = Result(area=CHANGED, case=name, verdict="clear", note=f"goes on, and says: {'; '.join(notes)[:160]}")
        yield found
        if name == "videos":  # what is left of the control: a finished run with another bit in its weights
            _flip(runs.run_dir(control) / "final" / "model.safetensors")
            yield judge(CHANGED, "a bit of the finished weights", run(control), control, expected)


def disk(drill: Drill) -> Iterator[Result]:
    """Full and read-only disks need root (a small tmpfs); the others run anywhere."""
    whole = runs.small_config(*drill.files, drill.root("disk-whole"))
    assert run(whole).code == 0
    expected = outcome(whole)
    yield judge(DISK, "finished, started again", run(whole), whole, expected, must_end=True)
    lock = copy.deepcopy(whole)
    lock["run"]["root"] = str(drill.root("disk-two"))
    first = runs.start(lock)
    while not (runs.run_dir(lock) / "run.json").exists() and first.is_alive():
        first.join(0.02)
    second = run(lock)
    verdict = "clear" if second.code == 73 else "crash"
    yield Result(area=DISK, case="a second process", verdict=verdict, note=f"exit {second.code}: {second.message[:120]}")
    first.join(300)
    yield judge(DISK, "the first of two processes", Ended(first.exitcode or 0, ""), lock, expected, must_end=True)
    if os.geteuid() != 0:
        yield Result(area=DISK, case="full and read-only disks", verdict="skipped", note="needs root, to mount a small tmpfs")
        return
    for size in (300, 14_000) if drill.quick else (300, 6_000, 14_000, 22_000, 30_000):
        yield from _full(drill, whole, expected, size)


def _full(drill: Drill, whole: Config, expected: dict[str, Any], kilobytes: int) -> Iterator[Result]:
    root = drill.root(f"disk-{kilobytes}")
    config = copy.deepcopy(whole)
    config["run"]["root"] = str(root / "mount")
    (root / "mount").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(root / "mount")], capture_output=True, text=True
    )
    if mounted.returncode:
        yield Result(area=DISK, case=f"disk of {kilobytes} kB", verdict="skipped", note=mounted.stderr.strip())
        return
    try:
        first = run(config, notes=root)
        yield judge(DISK, f"disk of {kilobytes} kB", first, config, expected, codes={74})
        if first.code != 0:
            subprocess.run(["mount", "-o", "remount,ro", str(root / "mount")], check=True)
            yield judge(DISK, "read-only", run(config, notes=root), config, expected, codes={74})
            subprocess.run(["mount", "-o", "remount,rw,size=400m", str(root / "mount")], check=True)
        yield judge(DISK, f"disk of {kilobytes} kB, then enlarged", run(config, notes=root), config, expected, must_end=True)
    finally:
        subprocess.run(["umount", str(root / "mount")], check=True)
