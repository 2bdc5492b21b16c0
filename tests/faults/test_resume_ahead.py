"""Runs that sample ahead of their updates (`rollout.staleness`): lock-step, and killed at any moment they end with the same bits."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import ahead, cases, runs

STALENESS = 2
STEPS = 6
Whole = tuple[dict[str, Any], dict[str, Any]]
"""A config and the outcome of its uninterrupted run."""


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    config = ahead.config(tiny_files, tmp_path_factory.mktemp("whole"), STALENESS)
    assert ahead.run(config, "audit") == 0
    return config, runs.outcome(config)


def elsewhere(config: dict[str, Any], root: Path) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    return out


def same_as_killed(uninterrupted: Whole, mine: dict[str, Any]) -> None:
    """The same outcome, and of every step the groups of the uninterrupted run, however often it was trained."""
    config, expected = uninterrupted
    assert runs.outcome(mine) == expected
    groups = ahead.lines(config, "trained.jsonl")
    assert [step for step in groups if step not in ahead.lines(mine, "trained.jsonl")] == []
    assert [step for step in ahead.lines(mine, "trained.jsonl") if step not in groups] == []


def test_each_step_trains_once_on_the_version_of_its_turn(uninterrupted: Whole) -> None:
    config, expected = uninterrupted
    trained = ahead.lines(config, "trained.jsonl")
    assert [[version for _, version, _ in step] for step in trained] == [[[max(0, t - STALENESS)]] * 4 for t in range(STEPS)]
    names = [name for step in trained for name, _, _ in step]
    assert [name.split("/")[:3] for name in names] == [["rl", str(t), str(place)] for t in range(STEPS) for place in range(4)]
    lines = [line for line in expected["metrics"] if "rollout/staleness" in line]
    assert [line["rollout/staleness"] for line in lines] == [0, 1, 2, 2, 2, 2]
    assert all(line["grad_norm"] > 0 for line in lines)
    assert lines[1]["importance_correction/changed"] > 0, "the sampler's log-probs are of other weights than the trainer's"


@pytest.mark.parametrize(
    "point",
    cases.some(
        [
            "rollout.ahead@1",
            "rollout.ahead@5",
            "rollout.chunk@5",
            "step.before_update@2",
            "step.after_update@3",
            "ckpt.after_tensors@1",
            "ckpt.after_retention@2",
        ],
        {"rollout.ahead@5", "ckpt.after_tensors@1"},
    ),
)
def test_killed_at_a_named_point(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path)
    assert ahead.run(mine, "audit", fault=f"{point}:kill") == -9, f"{point} is never passed"
    assert ahead.run(mine, "audit") == 0
    same_as_killed(uninterrupted, mine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_killed_at_random(seed: int, uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path)
    for kill in range(3):
        if runs.kill_at_random(mine, seed * 10 + kill, longest=4.0) == 0:
            break
    assert ahead.run(mine, "audit") == 0
    assert runs.outcome(mine) == uninterrupted[1]


def test_sigterm_saves_the_steps_in_flight(uninterrupted: Whole, tmp_path: Path) -> None:
    mine = elsewhere(uninterrupted[0], tmp_path)
    assert ahead.run(mine, "audit", fault="step.after_update@3:term") == 75
    assert ahead.run(mine, "audit") == 0
    same_as_killed(uninterrupted, mine)


def test_an_older_checkpoint_holds_its_own_steps_in_flight(uninterrupted: Whole, tmp_path: Path) -> None:
    """The newest is damaged and the journals of the older one's steps are deleted: it goes on all the same."""
    mine = elsewhere(uninterrupted[0], tmp_path)
    assert ahead.run(mine, "audit", fault="step.before_update@5:kill") == -9
    older, newest = sorted((runs.run_dir(mine) / "checkpoints").glob("step-*"))
    assert [path.name for path in older.glob("in_flight*")] == ["in_flight.rank-0.json"]
    (newest / "state.json").write_text("{}")
    for journal in (runs.run_dir(mine) / "journal").iterdir():
        journal.unlink()
    assert ahead.run(mine, "audit") == 0
    same_as_killed(uninterrupted, mine)


def test_a_changed_row_of_a_step_in_flight_is_refused(uninterrupted: Whole, tmp_path: Path) -> None:
    """Also with `data.changed: accept`: the weights that sampled it are gone."""
    mine = elsewhere(uninterrupted[0], tmp_path)
    mine["data"]["changed"] = "accept"
    world = shutil.copytree(mine["data"]["root"], tmp_path / "world")
    mine["data"]["root"] = str(world)
    assert ahead.run(mine, fault="step.before_update@3:kill") == -9
    rows = (world / "train.jsonl").read_text()
    (world / "train.jsonl").write_text(rows.replace('"prompt": "', '"prompt": "Now: '))
    assert ahead.run(mine) == 76
    assert "step 3 was sampled before the checkpoint, from weights that are gone" in (tmp_path / "error.txt").read_text()


@pytest.mark.parametrize("staleness", cases.some([0, 1], {1}))
def test_an_engine_with_its_own_weights_gives_the_same_bits(staleness: int, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """With staleness it generates in a thread while the policy is updated, and the updates are those of an engine that does not."""
    plain, own = (ahead.config(tiny_files, tmp_path / name, staleness, steps=4) for name in ("plain", "own"))
    assert ahead.run(plain, "audit") == 0
    assert ahead.run(own, "audit", "own_weights") == 0, (tmp_path / "own" / "error.txt").read_text()
    assert runs.outcome(own) == runs.outcome(plain)
    assert ahead.lines(own, "trained.jsonl") == ahead.lines(plain, "trained.jsonl")
    generated = [line for line in ahead.lines(own, "order.jsonl") if line[0] == "generate"]
    assert [main for _, main, _ in generated] == [staleness == 0] * 8
    assert [synced for _, _, synced in generated] == sorted([max(0, t - staleness) for t in range(4)] * 2)


@pytest.mark.slow
def test_an_engine_with_its_own_weights_is_waited_for_by_a_checkpoint(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole, mine = (ahead.config(tiny_files, tmp_path / name, 1, steps=4) for name in ("whole", "mine"))
    assert ahead.run(whole, "audit", "own_weights") == 0
    assert ahead.run(mine, "audit", "own_weights", fault="step.before_update@3:kill") == -9
    assert ahead.run(mine, "audit", "own_weights") == 0
    same_as_killed((whole, runs.outcome(whole)), mine)


def test_without_staleness_the_queue_changes_no_bit(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    through, around = (ahead.config(tiny_files, tmp_path / name, 0, steps=3, importance_correction={"name": "none"}) for name in "ab")
    assert ahead.run(through, "audit") == 0
    assert ahead.run(around, "audit", "without_queue") == 0
    assert runs.outcome(through) == runs.outcome(around)
    assert ahead.lines(through, "trained.jsonl") == ahead.lines(around, "trained.jsonl")


# ---- several ranks -----------------------------------------------------------------------------------------------------


def of_steps(made: dict[str, Any]) -> dict[str, list[Any]]:
    """Step -> its groups, whichever rank trained them and however often."""
    out: dict[str, dict[str, Any]] = {}
    for line in ahead.lines(made, "trained.jsonl"):
        for name, versions, content in line:
            groups = out.setdefault(name.split("/")[1], {})
            assert groups.setdefault(name, [versions, content]) == [versions, content], f"{name} was trained on something else before"
    return {step: sorted(groups.items()) for step, groups in sorted(out.items())}


@pytest.mark.slow
def test_two_ranks_in_shards_killed_end_with_the_same_bits(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole, mine = (ahead.config(tiny_files, tmp_path / name, 1, steps=4) | {"train": {"sharding": "fsdp"}} for name in ("whole", "mine"))
    assert ahead.run_ranks(whole, "audit") == [0, 0]
    assert -9 in ahead.run_ranks(mine, "audit", fault="step.before_update@4:kill")
    assert ahead.run_ranks(mine, "audit") == [0, 0]
    assert runs.outcome(mine) == runs.outcome(whole)
    assert of_steps(mine) == of_steps(whole)
    assert [len(groups) for groups in of_steps(whole).values()] == [4] * 4


def test_steps_in_flight_of_two_ranks_are_trained_by_one(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    mine = ahead.config(tiny_files, tmp_path, 1, steps=4)
    assert -9 in ahead.run_ranks(mine, "audit", fault="step.before_update@3:kill")
    shutil.rmtree(runs.run_dir(mine) / "journal")
    assert ahead.run(mine, "audit") == 0
    groups = of_steps(mine)
    assert [[versions for _, (versions, _) in step] for step in groups.values()] == [[[max(0, t - 1)]] * 4 for t in range(4)]
