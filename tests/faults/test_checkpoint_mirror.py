"""A machine that is lost with its disk: the same command elsewhere goes on from the mirror (`checkpoint.mirror`) to the same bits."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs

Whole = tuple[dict[str, Any], dict[str, Any]]


def mirrored(config: dict[str, Any], folder: Path, **more: Any) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(folder / "here")
    Path(out["run"]["root"]).mkdir()
    out["checkpoint"] |= {"mirror": f"file://{folder / 'there'}", **more}
    return out


@pytest.mark.parametrize("asynchronous", cases.some([False, True], {True}))
def test_lost_in_the_second_stage(asynchronous: bool, small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = mirrored(config, tmp_path, asynchronous=asynchronous)
    assert runs.run(mine, "step.before_update@7:kill") == -9
    shutil.rmtree(runs.run_dir(mine))
    assert runs.run(mine) == 0
    said = (tmp_path / "here" / "said.txt").read_text()
    assert f"fetched step-00000005 from file://{tmp_path / 'there'}/small" in said
    assert "resuming from step-00000005: stage 'rl', step 2" in said
    assert runs.outcome(mine) == expected


def test_a_flipped_bit_is_refused(small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = mirrored(config, tmp_path)
    assert runs.run(mine, "step.before_update@7:kill") == -9
    shutil.rmtree(runs.run_dir(mine))
    newest = tmp_path / "there" / "small" / "checkpoints" / "step-00000005"
    data = bytearray((newest / "weights.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "weights.safetensors").write_bytes(bytes(data))
    assert runs.run(mine) == 76
    said = (tmp_path / "here" / "error.txt").read_text()
    assert "step-00000005 is damaged: weights.safetensors: content differs from its sha256" in said
    assert "delete that folder to go on from the one before" in said
    shutil.rmtree(newest)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_another_recipe_is_refused_on_a_fresh_machine_too(small_run: Whole, tmp_path: Path) -> None:
    mine = mirrored(small_run[0], tmp_path)
    assert runs.run(mine, "step.before_update@4:kill") == -9
    shutil.rmtree(runs.run_dir(mine))
    mine["run"]["seed"] = 7
    assert runs.run(mine) == 64
    assert "run.seed: 0 in the run, 7 now" in (tmp_path / "here" / "error.txt").read_text()


def test_a_mirror_that_is_down_does_not_stop_training(small_run: Whole, tmp_path: Path) -> None:
    config, expected = small_run
    mine = mirrored(config, tmp_path)
    (tmp_path / "there" / "small" / "metrics.jsonl").mkdir(parents=True)  # a folder where a file should be
    assert runs.run(mine) == 0
    said = (tmp_path / "here" / "said.txt").read_text()
    assert said.count("was not uploaded") >= 3
    assert runs.outcome(mine) == expected
