"""Killed at any moment and started again with the same command, a run ends with the same bits (reliability: R1, R2, R3, R7, R9)."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from vlmrl import faults

Whole = tuple[dict[str, Any], dict[str, Any]]
"""A config and the outcome of its uninterrupted run."""
FIRST = [f"{name}@1" for name in faults.POINTS if name not in ("rollout.ahead", "rollout.turn")]
"""The two others: test_resume_ahead.py, test_resume_turns.py."""
POINTS = [
    *FIRST,
    "rollout.chunk@2",
    "rollout.chunk@5",
    "step.before_update@2",
    "step.before_update@6",
    "step.after_update@3",
    "step.after_log@5",
    "ckpt.after_rename@2",
    "ckpt.after_tensors@3",
    "ckpt.after_manifest@4",
    "stage.started@2",
    "eval.record@4",
    "stage.exported@2",
]
ALWAYS = {"step.after_update@1", "rollout.chunk@5"}
IN_TURN = (
    "run.opened@1",
    "eval.record@1",
    "step.after_update@1",
    "ckpt.after_tensors@1",
    "ckpt.after_rename@1",
    "stage.exported@1",
    "stage.finished@1",
    "stage.started@1",
    "rollout.chunk@1",
    "rollout.scored@1",
    "rollout.chunk@3",
    "step.before_update@2",
)
"""One run is killed at all of these, each time at the first passage (or the one named) since it was started again."""


def elsewhere(config: dict[str, Any], root: Path) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    return out


def test_the_same_recipe_gives_the_same_bits(small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    again = elsewhere(config, tmp_path)
    assert runs.run(again) == 0
    assert runs.outcome(again) == expected
    assert expected["weights"]["stages/sft"] != expected["weights"]["stages/rl"], "training must change the weights"
    rl = [line for line in expected["metrics"] if line["stage"] == "rl" and "reward_std" in line]
    assert any(line["reward_std"] > 0 and line["grad_norm"] > 0 for line in rl), "the test run must learn something"


def test_held_out_questions_are_asked_within_a_stage(small_run: Whole) -> None:
    """`eval.every: 3`: within the four steps of the second stage once, and not again where the first stage of three ends."""
    config, expected = small_run
    assert config["eval"]["every"] == 3
    assert set(expected["eval"]) == {"base.jsonl", "sft.jsonl", "rl@3.jsonl", "rl.jsonl"}
    assert all(len(records) == 6 for records in expected["eval"].values())
    asked = [line["stage"] for line in expected["metrics"] if "eval/rows" in line]
    assert asked == ["base", "sft", "rl@3", "rl"]


@pytest.mark.parametrize("point", cases.some(POINTS, ALWAYS))
def test_killed_at_a_named_point(point: str, small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_killed_at_one_point_after_the_other(small_run: Whole, tmp_path: Path) -> None:
    """By day in place of a run for each point: a run that was killed in all its phases ends with the bits of one that was not."""
    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    for point in IN_TURN:
        assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


@pytest.mark.parametrize("seed", cases.some(range(5), {0}))
def test_killed_at_random(seed: int, small_run: Whole, tmp_path: Path) -> None:
    _chaos(seed, small_run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 125))
def test_killed_at_random_many(seed: int, small_run: Whole, tmp_path: Path) -> None:
    _chaos(seed, small_run, tmp_path)


def _chaos(seed: int, small_run: Whole, tmp_path: Path) -> None:
    """Up to three kills at random moments of one run, then to the end."""
    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    for kill in range(3):
        if runs.kill_at_random(mine, seed * 10 + kill, longest=4.0) == 0:
            break
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


@pytest.mark.parametrize("point", cases.some(["rollout.chunk@3", "step.after_update@5", "stage.started@2"], {"rollout.chunk@3"}))
def test_sigterm_saves_and_exits_75(point: str, small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, f"{point}:term") == 75
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_damaged_checkpoint_falls_back_to_the_one_before(small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "step.before_update@6:kill") == -9
    newest = sorted((runs.run_dir(mine) / "checkpoints").glob("step-*"))[-1]
    victim = newest / "weights.safetensors"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    assert list((runs.run_dir(mine) / "checkpoints").glob("bad-*"))


def test_full_disk_during_one_save_is_survived(small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "ckpt.after_tensors@2:enospc") == 0
    assert runs.outcome(mine)["weights"] == expected["weights"]


def test_finished_groups_are_replayed_not_generated(small_run: Whole, tmp_path: Path) -> None:
    """Killed after the first of two chunks of an RL step: on resume one chunk comes from the journal."""
    from vlmrl.run.tracking import read_metrics

    config, _ = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "rollout.chunk@1:kill") == -9
    assert runs.run(mine) == 0
    lines = [line for line in read_metrics(runs.run_dir(mine) / "metrics.jsonl") if "resume/replayed_groups" in line]
    assert [line["resume/replayed_groups"] for line in lines] == [2.0, 0.0, 0.0, 0.0]


def test_changed_recipe_is_refused_and_named(small_run: Whole, tmp_path: Path) -> None:
    config, _ = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "step.after_log@2:kill") == -9
    mine["stages"][0]["optim"]["lr"] = 2e-3
    assert runs.run(mine) == 64
    assert "stages.0.optim.lr" in (tmp_path / "error.txt").read_text()


def test_every_leaf_of_the_run_state_is_checked_at_load() -> None:
    """Dropping or adding any leaf is refused, so nothing can be forgotten in silence."""
    from vlmrl.errors import CheckpointError
    from vlmrl.train.state import RunState

    whole = RunState().state_dict()
    for leaf in whole:
        with pytest.raises(CheckpointError, match=leaf):
            RunState().load_state_dict({k: v for k, v in whole.items() if k != leaf})
    with pytest.raises(CheckpointError, match="surprise"):
        RunState().load_state_dict(whole | {"surprise": 1})


def _mutations() -> dict[str, Any]:
    """A wrong value for each leaf that decides numbers."""
    return {
        "step": lambda state: state | {"step": state["step"] - 1},
        "global_step": lambda state: state | {"global_step": state["global_step"] + 1},
        "policy_version": lambda state: state | {"policy_version": state["policy_version"] + 1},
        "memories": lambda state: state | {"memories": state["memories"] | {"sampler": _moved(state["memories"]["sampler"])}},
        "ledger": lambda state: state | {"ledger": _emptied(state["ledger"])},
    }


def _moved(sampler: dict[str, Any]) -> dict[str, Any]:
    return sampler | {"position": sampler["position"] + 1}


def _emptied(ledger: dict[str, Any]) -> dict[str, Any]:
    return {key: {} if isinstance(value, dict) else value for key, value in ledger.items()}


@pytest.mark.parametrize("leaf", cases.some(sorted(_mutations()), {"ledger"}))
def test_the_equality_test_notices_a_forgotten_leaf(leaf: str, small_run: Whole, tmp_path: Path) -> None:
    """The test of the test: with a wrong value restored, the outcome must differ (reliability R4)."""
    import hashlib
    import json

    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "step.before_update@6:kill") == -9
    newest = sorted((runs.run_dir(mine) / "checkpoints").glob("step-*"))[-1]
    state = json.loads((newest / "state.json").read_text())
    state["run"] = _mutations()[leaf](state["run"])
    raw = json.dumps(state, sort_keys=True).encode()
    (newest / "state.json").write_bytes(raw)
    _reseal(newest, "state.json", raw, hashlib.sha256(raw).hexdigest())
    assert runs.run(mine) in (0, 70, 76)
    try:
        changed = runs.outcome(mine)
    except (FileNotFoundError, IndexError):
        return  # it did not even finish: noticed
    assert changed != expected


def _reseal(folder: Path, name: str, raw: bytes, digest: str) -> None:
    """Rewrite the manifest for an edited file, as an attacker or a buggy save would."""
    import json

    from vlmrl.run import checkpoint
    from vlmrl.train.manifest import sealed

    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]
    for entry in manifest["files"]:
        if entry["path"] == name:
            entry |= {"size": len(raw), "sha256": digest}
    (folder / "manifest.json").write_bytes(sealed(manifest))
    assert checkpoint.verify(folder) == []


def test_optimizer_moments_matter(small_run: Whole, tmp_path: Path) -> None:
    """With the first moments set to zero in the checkpoint the outcome differs."""
    import hashlib

    from vlmrl.train.tensors import read_tensors, write_tensors

    config, expected = small_run
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "step.before_update@6:kill") == -9
    newest = sorted((runs.run_dir(mine) / "checkpoints").glob("step-*"))[-1]
    path = newest / "optimizer.safetensors"
    tensors = {k: v * 0 if k.startswith("exp_avg/") else v for k, v in read_tensors(path).items()}
    write_tensors(path, tensors)
    raw = path.read_bytes()
    _reseal(newest, path.name, raw, hashlib.sha256(raw).hexdigest())
    assert runs.run(mine) == 0
    assert runs.outcome(mine)["weights"] != expected["weights"]
    shutil.rmtree(runs.run_dir(mine))
