"""Episodes in training: killed in the middle of them and started again, a run ends with the same bits; faults are values, and too many of
them end it with exit code 69, with nothing lost."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from tests.support.episodes import small_episodes
from vlmrl.run.tracking import read_metrics

Whole = tuple[dict[str, Any], dict[str, Any]]
POINTS = ("rollout.turn@1", "rollout.turn@4", "rollout.turn@8", "rollout.chunk@3", "step.before_update@2")


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    config = small_episodes(*tiny_files, tmp_path_factory.mktemp("whole"))
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    return config, runs.outcome(config)


def elsewhere(config: dict[str, Any], root: Path, **environment: Any) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["stages"][0]["environment"] |= environment
    return out


def metrics(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]


def test_turns_are_rows_and_train(uninterrupted: Whole) -> None:
    config, _ = uninterrupted
    lines = metrics(config)
    assert [line["environment/attempts"] for line in lines] == [12.0] * 3
    assert all(line["environment/turns"] == 36.0 and line["environment/limit/turns"] == 12.0 for line in lines), "nobody solves a task"
    assert all(line["environment/faults"] == 0.0 for line in lines)
    assert all(line["grad_norm"] > 0 and line["reward_std"] > 0 for line in lines)
    # sampled under the prompts that train: the policy of the step gives the sampler's log-probs
    assert all(line["sampling/logp_gap"] < 1e-5 for line in lines)
    assert all(line[f"sampling/turn_gap/{turn}"] < 1e-5 for line in lines for turn in range(3))


@pytest.mark.parametrize("point", cases.some(POINTS, {"rollout.turn@8", "rollout.chunk@3"}))
def test_killed_within_the_episodes_of_a_step(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_a_batch_of_episodes_that_is_in_the_journal_is_not_played_again(uninterrupted: Whole, tmp_path: Path) -> None:
    config, _ = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "rollout.chunk@1:kill") == -9
    assert runs.run(mine) == 0
    assert [line["resume/replayed_groups"] for line in metrics(mine)] == [2.0, 0.0, 0.0]


def test_worlds_that_crash_change_no_bit(uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = elsewhere(config, tmp_path, crash_share=0.5)
    assert runs.run(mine) == 0
    assert runs.outcome(mine)["weights"] == expected["weights"]
    assert sum(line["environment/retried"] for line in metrics(mine)) > 0
    assert all(line["environment/faults"] == 0.0 for line in metrics(mine))


def test_too_many_faults_end_the_run_and_lose_nothing(uninterrupted: Whole, tmp_path: Path) -> None:
    """A quarter of the episodes stays lost: allowed, they are left out; not allowed, the run ends, and its journal has no such batch."""
    config, _ = uninterrupted
    mine = elsewhere(config, tmp_path, crash_share=0.3, fault="raise", fault_attempts=99, max_faults=0.0)
    assert runs.run(mine) == 69
    said = (tmp_path / "error.txt").read_text()
    assert "raised:RuntimeError" in said
    assert "max_faults" in said
    for journal in (runs.run_dir(mine) / "journal").glob("*.journal"):
        assert all('"fault": "raised' not in line for line in journal.read_text(errors="replace").splitlines())
    mine["stages"][0]["environment"]["max_faults"] = 1.0  # may change at resume
    assert runs.run(mine) == 0
    lines = metrics(mine)
    assert sum(line["environment/faults"] for line in lines) > 0
    assert all(line["environment/turns"] == 3 * (line["environment/attempts"] - line["environment/faults"]) for line in lines)
    assert all(json.dumps(line["reward"]) != "NaN" for line in lines)


@pytest.mark.slow
def test_chains_and_trees_train_as_a_row_per_turn_does(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    lines: dict[str, list[dict[str, Any]]] = {}
    for forward in ("shared_prefix", "chains", "trees"):
        config = small_episodes(*tiny_files, tmp_path, history={}, forward=forward)
        config["stages"][0]["rollout"]["kept_bytes"] = 2**31 if forward == "chains" else 0
        config["run"]["name"] = forward.replace("_", "-")
        assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
        lines[forward] = metrics(config)
    for name in ("chains", "trees"):
        for shared, turned in zip(lines[name], lines["shared_prefix"], strict=True):
            assert shared["environment/turns"] == turned["environment/turns"] == 36.0
            assert shared["loss"] == pytest.approx(turned["loss"], abs=1e-5)
            assert shared["grad_norm"] == pytest.approx(turned["grad_norm"], rel=1e-3)
            assert shared["sampling/logp_gap"] < 1e-5
            assert all(shared[f"sampling/turn_gap/{turn}"] < 1e-5 for turn in range(3)), "at every turn, also with kept keys and values"
            assert shared[f"tokens/saved_by_{name}"] > 0
            assert shared["tokens/forward"] + shared[f"tokens/saved_by_{name}"] == turned["tokens/forward"]
            assert f"tokens/saved_by_{name}" not in turned
    for chained, tree in zip(lines["chains"], lines["trees"], strict=True):
        assert tree["tokens/forward"] <= chained["tokens/forward"]
        assert chained["work/kept_tokens"] > chained["work/prefilled_tokens"] / 2 > tree["work/kept_tokens"] == 0


def test_held_out_tasks_and_suites_are_played_between_stages(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = small_episodes(*tiny_files, tmp_path, steps=2)
    suite = tmp_path / "suite.yaml"
    task = {"id": "desk", "environment": {"name": "toy_desk", "max_turns": 2, "workers": 1, "crash_share": 1.0, "fault": "raise"}}
    task |= {"answer_format": "answer_only", "answer_type": "episode", "max_new_tokens": 4, "episodes": 2, "media": {"max_pixels": 4704}}
    suite.write_text(json.dumps({"id": "s", "version": 1, "tasks": [task]}))
    config["eval"] = {"source": config["stages"][0]["source"], "limit": 2, "max_new_tokens": 4, "suite": str(suite), "every": 1}
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    folder = runs.run_dir(config) / "eval"
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "eval/success" in line]
    assert {line["stage"] for line in lines} >= {"base", "rl@1", "rl"}
    assert all((line["eval/rows"], line["eval/success"], line["eval/fault_rate"], line["eval/failed"]) == (2, 0, 0, 0) for line in lines)
    assert all(line["eval/desk/success"] == 0 for line in lines), "an episode that lost its world once is played again and counts"
    names = {"base.jsonl", "base.episodes.jsonl", "rl.jsonl", "rl.episodes.jsonl"}
    assert names <= {path.name for path in folder.iterdir()}
    assert [json.loads(line)["answer_type"] for line in (folder / "rl.jsonl").read_text().splitlines()] == ["episode"] * 2
    assert (folder / "suite" / "rl" / "desk.jsonl").is_file()
    assert (folder / "screens").is_dir()


def test_killed_between_forks(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Two beginnings with two attempts each: what they share is sampled once, and the trees of a resumed run are those of a whole one."""
    root = tmp_path / "whole"
    root.mkdir()
    config = small_episodes(*tiny_files, root, history={}, forward="trees", advantage={"name": "spo_tree"}, steps=2)
    config["stages"][0]["rollout"] |= {"num_generations": 4, "forks": {1: 2}, "prompts_per_step": 2}
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    for line in metrics(config):
        assert line["environment/attempts"] == 8.0
        assert line["tokens/saved_by_trees"] > 0
        assert line["sampling/logp_gap"] < 1e-5
    mine = elsewhere(config, tmp_path / "mine")
    assert runs.run(mine, "rollout.turn@2:kill") == -9
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == runs.outcome(config)
