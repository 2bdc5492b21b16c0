"""Worlds that begin ahead of need: a run ends with the same bits without them, and also where it is killed while they wait."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from tests.support.episodes import small_episodes
from vlmrl.run.tracking import read_metrics

Whole = tuple[dict[str, Any], dict[str, Any]]
POINTS = ("rollout.chunk@1", "rollout.scored@1", "step.before_update@2")
"""At each the next batch's or step's worlds have begun, or are beginning."""


@pytest.fixture(scope="module")
def without(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    config = small_episodes(*tiny_files, tmp_path_factory.mktemp("whole"))
    config["stages"][0]["environment"]["ahead"] = False
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    return config, runs.outcome(config)


def elsewhere(config: dict[str, Any], root: Path, *, ahead: bool) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["stages"][0]["environment"]["ahead"] = ahead
    return out


def metrics(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]


def test_they_change_no_bit(without: Whole, tmp_path: Path) -> None:
    config, expected = without
    mine = elsewhere(config, tmp_path, ahead=True)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    assert [line["work/screens_shared"] for line in metrics(mine)] == [8.0] * 3, "of 12 attempts in 4 groups"
    assert [line["work/screens_shared"] for line in metrics(config)] == [0.0] * 3
    assert [line["work/worlds_begun"] for line in metrics(config)] == [12.0] * 3
    assert all(line["work/worlds_unused"] == 0.0 for line in metrics(mine)), "every guess of the next step is right"
    for line in metrics(mine):
        parts = line["time/environment"], line["time/sampling"]
        assert min(parts) > 0
        assert sum(parts) <= line["time/rollout"]


@pytest.mark.parametrize("point", cases.some(POINTS, {"rollout.chunk@1", "rollout.scored@1"}))
@pytest.mark.parametrize("after", [True, False])
def test_killed_while_they_wait(point: str, after: bool, without: Whole, tmp_path: Path) -> None:
    config, expected = without
    assert runs.run(elsewhere(config, tmp_path, ahead=True), f"{point}:kill") == -9, f"{point} is never passed"
    mine = elsewhere(config, tmp_path, ahead=after)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
