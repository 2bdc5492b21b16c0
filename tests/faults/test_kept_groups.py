"""Groups that a run keeps: they change no bit of it, and a killed run goes on without losing one or keeping one twice."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from vlmrl.extras.pages.kept.media import Medium
from vlmrl.extras.pages.kept.read import KeptGroups


@pytest.fixture(scope="module")
def whole(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The recipe of a run that went to its end."""
    config = runs.small_config(*tiny_files, tmp_path_factory.mktemp("whole"))
    config["keep"] = {"groups_per_step": 3, "frames": 3}
    assert runs.run(config) == 0
    return config


def elsewhere(config: dict[str, Any], root: Path, **keep: int) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["keep"] |= keep
    return out


def files(config: dict[str, Any]) -> dict[str, bytes]:
    folder = runs.run_dir(config) / "groups"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_groups_are_kept_with_all_that_was_made_of_them(whole: dict[str, Any]) -> None:
    kept = KeptGroups(runs.run_dir(whole) / "groups")
    kept.follow()
    found = list(kept.entries())
    assert [entry["step"] for _, entry in found] == [step for step in (1, 2, 3, 4) for _ in range(3)]
    metrics = [json.loads(line) for line in (runs.run_dir(whole) / "metrics.jsonl").read_text().splitlines()]
    logged = {line["global_step"] for line in metrics if line["stage"] == "rl" and "reward" in line}
    assert {entry["global_step"] for _, entry in found} == logged, "the steps are those of metrics.jsonl"
    for address, _ in found:
        record = kept.record(address)
        assert record["columns"] == ["temporal_iou", "format", "first_letter"]
        for answer in record["answers"]:
            assert len(answer["rewards"]) == 3
            assert len(answer["tokens"]) == len(answer["logp"]) > 0
            if answer["used"]:  # one update on fresh answers: the update's own forward gives the sampler's log-probs
                assert len(answer["entropy"]) == len(answer["tokens"])
                assert answer["policy_logp"] == pytest.approx(answer["logp"], abs=2e-3)
                assert all(value >= 0 for value in answer["entropy"])
        assert abs(sum(answer["advantage"] for answer in record["answers"] if answer["used"])) < 10
        (shown,) = record["media"]
        medium = Medium(runs.run_dir(whole) / "groups" / "rank-0" / "media" / f"{shown['key']}.zip")
        assert len(medium.info["indices"]) == 3
        assert medium.frame(2)[0].startswith(b"\xff\xd8")
    assert any(answer["used"] for address, _ in found for answer in kept.record(address)["answers"])


def test_training_is_the_same_without_them(whole: dict[str, Any], tmp_path: Path) -> None:
    mine = elsewhere(whole, tmp_path, groups_per_step=0)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == runs.outcome(whole)
    assert not (runs.run_dir(mine) / "groups").exists()


@pytest.mark.parametrize("point", cases.some(["step.before_update@6", "step.after_log@5"], {"step.before_update@6"}))
def test_killed_and_resumed_they_are_the_same_files(point: str, whole: dict[str, Any], tmp_path: Path) -> None:
    mine = elsewhere(whole, tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9
    kept = KeptGroups(runs.run_dir(mine) / "groups")
    kept.follow()
    assert 0 < len(kept) < 12, "readable after a kill"
    assert runs.run(mine) == 0
    assert files(mine) == files(whole)


def test_a_full_disk_ends_the_keeping_and_not_the_run(whole: dict[str, Any], tmp_path: Path) -> None:
    mine = elsewhere(whole, tmp_path)
    groups = runs.run_dir(mine) / "groups"
    groups.parent.mkdir(parents=True)
    said = tmp_path / "said.txt"
    mine["plugins"] = [*mine["plugins"], "tests.support.full_groups"]
    assert runs.run(mine, said=said) == 0
    assert "no more groups are kept" in said.read_text()
    assert runs.outcome(mine)["weights"] == runs.outcome(whole)["weights"]
