"""Lengths of tasks: declared and played, as tags that the curriculum reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.extras.agents.test_cli_env import run  # noqa: F401  (a fixture)
from vlmrl.data.adapters.base import ImportOptions
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.lengths import played_lengths, read_played, task_rows
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn
from vlmrl.extras.importers import tasks as task_rows_of_a_source
from vlmrl.sampling.curriculum_gui import curriculum_gui
from vlmrl.sampling.info import describe
from vlmrl.sampling.ledger import Ledger


def attempt(task: str, turns: int, outcome: str, fault: str | None = None) -> Trajectory:
    seen = Snapshot(text="", media=(), state="s")
    reward = None if fault else 0.0
    outcomes = [""] * (turns - 1) + [outcome]
    every = tuple(TrajectoryTurn(seen=seen, action="a", reward=reward, outcome=one) for one in outcomes)  # pyright: ignore[reportArgumentType]
    return Trajectory(task={"id": task}, seed=1, k=0, turns=every, fault=fault)


def test_only_successes_count_and_faults_say_nothing() -> None:
    played = [
        attempt("a", 2, "success"),
        attempt("a", 5, "success"),
        attempt("a", 9, "failure"),
        attempt("b", 4, "turns"),
        attempt("c", 3, "", fault="crashed"),
    ]
    assert played_lengths(played) == {"a": 3.5, "b": None}


def test_rows_have_lengths_where_one_is_known() -> None:
    tasks = [{"id": "a", "page": "x"}, {"id": "b"}, {"id": "c"}]
    rows = task_rows(tasks, {"a": 3.5, "b": None}, unsolved=99.0)
    assert rows == [
        {"id": "a", "environment": {"page": "x"}, "trajectory": {"length": 3.5}},
        {"id": "b", "environment": {}, "trajectory": {"length": 99.0}},
        {"id": "c", "environment": {}},
    ]
    limited = task_rows(tasks, {"a": 3.5, "b": None}, unsolved=99.0, times=1.5)
    assert [row["environment"] for row in limited] == [
        {"page": "x", "max_turns": 6},
        {},
        {},
    ]  # of a length that is none there is no multiple
    with pytest.raises(ConfigError, match="same id"):
        task_rows([{"id": "a"}, {"id": "a"}], {}, unsolved=None)


def test_declared_lengths_order_the_desks(run, tmp_path: Path) -> None:  # noqa: F811
    """The desk declares its fewest actions, which are the `length` of its tasks; the curriculum begins with the shortest."""
    given, out = tmp_path / "given.jsonl", tmp_path / "tasks.jsonl"
    given.write_text("".join(json.dumps({"id": f"desk-{n}", "environment": {"length": n}}) + "\n" for n in (4, 2, 3)))
    code, said, _ = run("lengths", "toy_desk", str(out), "--tasks", str(given), "--episodes", "2")
    assert code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(row["trajectory"]["length"] == row["environment"]["length"] for row in rows)
    assert "3 tasks, 3 with a length, from 2 to 4 turns" in said
    assert all(task_rows_of_a_source.detect(row) for row in rows)
    read = [task_rows_of_a_source.convert(row, ImportOptions()) for row in rows]
    samples = [describe(parse_row(row, source="here", media_root=".")) for row in read]
    limited = tmp_path / "limited.jsonl"
    assert run("lengths", "toy_desk", str(limited), "--tasks", str(given), "--episodes", "1", "--times", "1.5")[0] == 0
    assert [json.loads(line)["environment"]["max_turns"] for line in limited.read_text().splitlines()] == [6, 3, 5]
    plan = curriculum_gui(samples, 0, edges=(2, 3)).plan(Ledger(), prompts=1, rollouts=2)
    assert plan[0].sample_id == "desk-2"
    assert run("lengths", "toy_desk", str(out))[0] == 64, "nothing is written over"
    assert run("lengths", "image_tools", str(tmp_path / "other.jsonl"))[0] == 64, "rows of data have tags of their own"


def test_measured_lengths_come_from_what_was_played(run, tmp_path: Path) -> None:  # noqa: F811
    played, out = tmp_path / "played", tmp_path / "tasks.jsonl"
    assert run("play", "toy_desk", str(played), "--agent", "solve", "--episodes", "6")[0] == 0
    assert run("lengths", "toy_desk", str(out), "--played", str(played / "trajectories.jsonl"))[0] == 0
    found = {row["id"]: row["trajectory"]["length"] for row in map(json.loads, out.read_text().splitlines())}
    assert found == played_lengths(read_played(played / "trajectories.jsonl"))


def test_a_file_of_something_else_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"task": {}}\n')
    with pytest.raises(ConfigError, match=r"x\.jsonl:1: .*vlmrl tools env play or act"):
        read_played(tmp_path / "x.jsonl")
