"""Episodes that are played ahead of their updates (`rollout.staleness`): lock-step; killed at any moment they end with the same bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.support import ahead, cases, runs
from tests.support.episodes import small_episodes
from vlmrl.run.tracking import read_metrics

STALENESS = 1
STEPS = 4
Whole = tuple[dict[str, Any], dict[str, Any]]
"""A config and the outcome of its uninterrupted run."""


def config(files: tuple[Path, Path], root: Path, staleness: int = STALENESS, **stage: Any) -> dict[str, Any]:
    """Whole conversations, with what was read kept from turn to turn; two batches of episodes a step."""
    root.mkdir(parents=True, exist_ok=True)
    made = small_episodes(
        *files, root, history={}, forward="chains", steps=STEPS, importance_correction={"name": "tis"}, optim={"lr": 3e-3}, **stage
    )
    made["stages"][0]["rollout"] |= {"staleness": staleness, "num_generations": 2}
    return made


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    made = config(tiny_files, tmp_path_factory.mktemp("whole"))
    assert ahead.run(made, "audit") == 0, Path(made["run"]["root"], "error.txt").read_text()
    return made, runs.outcome(made)


def elsewhere(made: dict[str, Any], root: Path, **environment: Any) -> dict[str, Any]:
    out = copy.deepcopy(made)
    out["run"]["root"] = str(root)
    out["stages"][0]["environment"] |= environment
    return out


def metrics(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(made) / "metrics.jsonl") if "environment/attempts" in line]


def same_as_killed(uninterrupted: Whole, mine: dict[str, Any]) -> None:
    """The same outcome, and of every step the groups of the uninterrupted run, however often it was trained."""
    made, expected = uninterrupted
    assert runs.outcome(mine) == expected
    groups = ahead.lines(made, "trained.jsonl")
    assert [step for step in groups if step not in ahead.lines(mine, "trained.jsonl")] == []
    assert [step for step in ahead.lines(mine, "trained.jsonl") if step not in groups] == []


def test_each_step_trains_once_on_episodes_of_the_version_of_its_turn(uninterrupted: Whole) -> None:
    made, _ = uninterrupted
    trained = ahead.lines(made, "trained.jsonl")
    assert [[version for _, version, _ in step] for step in trained] == [[[max(0, t - STALENESS)]] * 4 for t in range(STEPS)]
    lines = metrics(made)
    assert [line["rollout/staleness"] for line in lines] == [0, 1, 1, 1]
    assert [line["environment/attempts"] for line in lines] == [8.0] * STEPS
    assert all(line["environment/turns"] == 24.0 and line["environment/faults"] == 0 for line in lines)
    assert all(line["grad_norm"] > 0 and line["work/kept_tokens"] > 0 for line in lines[:-1]), "the last step is sampled before its turn"
    assert all(lines[0][f"sampling/turn_gap/{turn}"] < 1e-5 for turn in range(3))
    assert all(lines[1][f"sampling/turn_gap/{turn}"] > 1e-5 for turn in range(3)), "an update lies between, at every turn"
    assert lines[1]["importance_correction/changed"] > 0


@pytest.mark.parametrize(
    "point",
    cases.some(
        [
            "rollout.turn@2",
            "rollout.turn@8",
            "rollout.turn@14",
            "rollout.ahead@1",
            "rollout.ahead@3",
            "rollout.chunk@3",
            "step.before_update@2",
            "step.after_update@3",
            "ckpt.after_tensors@1",
        ],
        {"rollout.turn@14", "step.after_update@3"},
    ),
)
def test_killed_at_a_named_point(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path)
    assert ahead.run(mine, "audit", fault=f"{point}:kill") == -9, f"{point} is never passed"
    assert ahead.run(mine, "audit") == 0
    same_as_killed(uninterrupted, mine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random(seed: int, uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path)
    for kill in range(3):
        if runs.kill_at_random(mine, seed * 10 + kill, longest=5.0) == 0:
            break
    assert ahead.run(mine, "audit") == 0
    assert runs.outcome(mine) == uninterrupted[1]


def test_an_engine_with_weights_of_its_own_plays_beside_the_update(
    uninterrupted: Whole, tiny_files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Episodes are played in a thread while the policy trains, and the bits are those of playing between updates."""
    own = config(tiny_files, tmp_path)
    assert ahead.run(own, "audit", "own_weights") == 0, (tmp_path / "error.txt").read_text()
    assert runs.outcome(own)["weights"] == uninterrupted[1]["weights"]
    assert ahead.lines(own, "trained.jsonl") == ahead.lines(uninterrupted[0], "trained.jsonl")
    main = [main for what, main, *_ in ahead.lines(own, "order.jsonl") if what == "generate"]
    assert not any(main)
    assert len(main) == 3 * 2 * STEPS, "each turn of each batch is asked once"


@pytest.mark.slow
def test_worlds_that_crash_change_no_bit(uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path, crash_share=0.5)
    assert ahead.run(mine, "audit") == 0
    assert runs.outcome(mine)["weights"] == uninterrupted[1]["weights"]
    assert sum(line["environment/retried"] for line in metrics(mine)) > 0


@pytest.mark.slow
def test_a_world_that_is_down_ends_the_run_and_loses_nothing(uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path, crash_share=1.0, fault="raise", fault_attempts=99, max_faults=1.0)
    assert ahead.run(mine) == 69
    said = (tmp_path / "error.txt").read_text()
    assert "episodes of the step" in said
    assert "raised:RuntimeError" in said


@pytest.mark.slow
def test_steps_in_flight_of_two_ranks_are_trained_by_one(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """The episodes that a checkpoint holds are dealt anew, and none is played again."""
    mine = config(tiny_files, tmp_path)
    assert -9 in ahead.run_ranks(mine, "audit", fault="step.before_update@3:kill")
    assert ahead.run(mine, "audit") == 0, (tmp_path / "error.txt").read_text()
    names = {name for line in ahead.lines(mine, "trained.jsonl") for name, _, _ in line}
    assert {name.split("/")[1] for name in names} == {str(t) for t in range(STEPS)}
    assert len(names) == 4 * STEPS
