"""A stage `distill` whose rows are turns of episodes: after a kill it ends with the same bits, in every layout and on any ranks alike."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.test_two_ranks import assert_same_updates
from tests.faults.test_resume_distill import BOTH
from tests.support import cases, runs
from tests.support.episodes import small_episodes
from tests.support.ranks import run_ranks
from vlmrl.run.tracking import read_metrics

LARGER = {"media": {"min_pixels": 12544, "max_pixels": 12544}}
Whole = tuple[dict[str, Any], dict[str, Any]]


def small(files: tuple[Path, Path], root: Path, **stage: Any) -> dict[str, Any]:
    """Episodes of two turns, whole conversations; the teacher is the start with larger screens."""
    root.mkdir(parents=True, exist_ok=True)
    config = small_episodes(*files, root, **({"history": {}, "teacher": LARGER} | stage))
    (rl,) = config["stages"]
    for field in ("rewards", "beta"):
        del rl[field]
    rl |= {"kind": "distill", "advantage": {"name": "trajectory"}}
    rl["environment"] |= {"max_turns": 2}
    return config


def logged(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "distill/gap" in line]


def ran(config: dict[str, Any]) -> list[dict[str, Any]]:
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    return logged(config)


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    config = small(tiny_files, tmp_path_factory.mktemp("whole"), **BOTH)
    ran(config)
    return config, runs.outcome(config)


def test_what_is_logged_and_recorded(uninterrupted: Whole) -> None:
    config, _ = uninterrupted
    lines, path = logged(config), runs.run_dir(config)
    assert len(lines) == 3
    for line in lines:
        assert line["environment/attempts"] == 12.0
        assert line["environment/turns"] == 24.0
        assert line["distill/gap"] == line["distill/task_gap/environment"] != 0
        assert line["distill/prompt_tokens/teacher"] > line["distill/prompt_tokens/student"] + 10
        assert line["auxiliary/teacher_jsd"] > 0 < line["grad_norm"]
        assert line["groups_with_signal"] == 4
    seen = [json.loads(line) for line in (path / "teacher" / "rl.rank-0.jsonl").read_text().splitlines()]
    screens = {file.name for file in (path / "screens").iterdir()}
    assert {line["row"] for line in seen} <= screens
    assert len(seen) == len({line["row"] for line in seen}) > 3
    assert all(line["student"]["media"] != line["teacher"]["media"] for line in seen)
    assert all(line["teacher"]["tokens"] > line["student"]["tokens"] for line in seen)


@pytest.mark.xfail(
    torch.backends.cpu.get_cpu_capability() == "AVX512",
    reason="features of a replayed step are encoded in other batches, which round otherwise there (docs/limits.md)",
    strict=False,
)
@pytest.mark.parametrize("point", cases.some(["step.before_update@3", "rollout.turn@9"], {"step.before_update@3"}))
def test_killed_and_started_again(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = copy.deepcopy(config)
    mine["run"]["root"] = str(tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    records = [(runs.run_dir(one) / "teacher" / "rl.rank-0.jsonl").read_bytes() for one in (config, mine)]
    assert records[0] == records[1]


@pytest.mark.parametrize("history", [{}, {"screens": 1}])
def test_a_teacher_that_is_the_policy_has_no_gap(history: dict[str, Any], tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    (line,) = ran(small(tiny_files, tmp_path, history=history, teacher={}, steps=1, **BOTH))
    assert line["environment/turns"] == 24.0
    assert abs(line["distill/gap"]) < 1e-6
    assert line["distill/prompt_tokens/teacher"] == line["distill/prompt_tokens/student"]
    assert abs(line["auxiliary/teacher_jsd"]) < 1e-6
    assert line["grad_norm"] < 1e-5


@pytest.mark.slow
def test_layouts_of_turns_are_taught_as_a_row_per_turn_is(uninterrupted: Whole, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config, _ = uninterrupted
    for forward in ("chains", "trees", "repeat"):
        lines = ran(small(tiny_files, tmp_path / forward, forward=forward, **BOTH))
        for one, other in zip(lines, logged(config), strict=True):
            for name in ("distill/gap", "auxiliary/teacher_jsd", "loss", "distill/prompt_tokens/teacher"):
                assert one[name] == pytest.approx(other[name], abs=2e-5), (forward, name)
            assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_ranks_are_taught_as_one(sharding: str, uninterrupted: Whole, tmp_path: Path) -> None:
    """Episodes end at other numbers of tokens, so ranks have other numbers of micro-batches."""
    config, _ = uninterrupted
    one, two = (copy.deepcopy(config) for _ in range(2))
    for number, mine in enumerate((one, two), start=1):
        mine["run"]["root"] = str(tmp_path / str(number))
        mine["stages"][0]["max_tokens_per_microbatch"] = 400
        mine["train"] = {"sharding": "ddp" if number == 1 else sharding}
        run_ranks(number, tmp_path / str(number), runs._run, mine, None)
    assert_same_updates([one, two], steps=3)
    for alone, together in zip(logged(one), logged(two), strict=True):
        for name in (name for name in alone if name.startswith("distill/")):
            assert together[name] == pytest.approx(alone[name], abs=2e-5), name


@pytest.mark.slow
def test_played_ahead_and_killed(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """The attempts of a step in flight are read back from the checkpoint, and shown to the teacher as they would have been."""
    whole, killed = (small(tiny_files, tmp_path / name, importance_correction={"name": "tis"}, **BOTH) for name in ("whole", "killed"))
    for config in (whole, killed):
        config["stages"][0]["rollout"]["staleness"] = 1
    assert [line["rollout/staleness"] for line in ran(whole)] == [0.0, 1.0, 1.0]
    assert runs.run(killed, "step.before_update@3:kill") == -9
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)


def test_a_hint_for_the_tasks(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = small(tiny_files, tmp_path, steps=1, teacher={"hint": "meta.way"})
    assert runs.run(config) == 65
    said = (tmp_path / "error.txt").read_text()
    assert "row 'desk-" in said
    assert "teacher.hint 'meta.way', and the row has none" in said
    path = tmp_path / "tasks.jsonl"
    tasks = [json.loads(line) | {"way": "press the button"} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    config["run"]["name"] = "again"
    (line,) = ran(config)
    assert line["distill/prompt_tokens/teacher"] > line["distill/prompt_tokens/student"]
    assert line["distill/gap"] != 0
