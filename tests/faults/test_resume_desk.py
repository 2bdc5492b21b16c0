"""Whole conversations with kept caches in `toy_desk`, killed anywhere and started again, end with the same bits; so do those whose worlds
crash, and a world that is down ends the run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from tests.support.episodes import small_episodes
from vlmrl import faults
from vlmrl.run.tracking import read_metrics

Whole = tuple[dict[str, Any], dict[str, Any]]
POINTS = [
    *(f"{name}@1" for name in faults.POINTS if name != "rollout.ahead"),
    "rollout.turn@5",
    "rollout.turn@9",
    "rollout.chunk@4",
    "step.before_update@3",
    "ckpt.after_tensors@2",
]
"""Steps are played ahead in `test_resume_turns_ahead.py`."""


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("whole")
    config = small_episodes(*tiny_files, root, history={}, forward="chains")
    config["eval"] = {"source": config["stages"][0]["source"], "limit": 2, "max_new_tokens": 4}
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    assert all(line["work/kept_tokens"] > 0 for line in metrics(config))
    return config, runs.outcome(config)


def elsewhere(config: dict[str, Any], root: Path, **environment: Any) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["stages"][0]["environment"] |= environment
    return out


def metrics(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]


@pytest.mark.parametrize("point", cases.some(POINTS, {"rollout.turn@5"}))
def test_killed_at_a_named_point(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_killed_at_random(seed: int, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = elsewhere(config, tmp_path)
    for kill in range(2):
        if runs.kill_at_random(mine, seed * 10 + kill, longest=5.0) == 0:
            break
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


@pytest.mark.parametrize("fault", cases.some(["kill", "raise"], {"kill"}))
def test_a_world_that_crashes_in_a_tenth_of_its_episodes_changes_no_bit(fault: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = elsewhere(config, tmp_path, crash_share=0.1, fault=fault)
    assert runs.run(mine) == 0
    assert runs.outcome(mine)["weights"] == expected["weights"]
    assert sum(line["environment/retried"] for line in metrics(mine)) > 0
    assert all(line["environment/faults"] == 0.0 for line in metrics(mine))


def test_a_world_that_is_down_ends_the_run_at_once(uninterrupted: Whole, tmp_path: Path) -> None:
    config, _ = uninterrupted
    mine = elsewhere(config, tmp_path, crash_share=1.0, fault="raise", fault_attempts=99, max_faults=1.0)
    mine["eval"] = {}
    assert runs.run(mine) == 69
    said = (tmp_path / "error.txt").read_text()
    assert "all of 12 episodes of the step" in said
    assert "raised:RuntimeError" in said
    assert len(metrics(mine)) <= 1, "an attempt may be over before the turn at which its world crashes"
