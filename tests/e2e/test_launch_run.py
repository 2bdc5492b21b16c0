"""`vlmrl train --gpus`: ranks on the CPU of this machine, mistakes said once, exit codes, and the script for the first hour."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs

ROOT = Path(__file__).parents[2]
SMALL = (
    "toy.world={kind: shell, pretrain: 12, sft: 8, train: 8, validation: 4, test: 4}",
    "toy.base.steps=2",
    "toy.base.batch=4",
    "toy.base.until=null",
    "stages.sft.steps=1",
    "stages.sft.batch=4",
    "stages.rl.steps=2",
    "stages.rl.rollout.prompts_per_step=4",
    "stages.rl.rollout.max_new_tokens=8",
    "eval.limit=4",
    "run.trackers=[]",
    "run.threads=1",
)
"""Makes the generated world and its run small enough for a test."""


def shell(*command: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLMRL_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, timeout=400, env=env, cwd=ROOT, check=False)


def launched(*words: str) -> subprocess.CompletedProcess[str]:
    return shell(sys.executable, "-m", "vlmrl", "train", "--gpus", "2", *words)


def recipe_of(config: dict[str, Any], folder: Path) -> str:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML, and has no aliases
    return str(path)


def test_a_mistake_in_the_recipe_starts_nothing(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    done = launched(recipe_of(config, tmp_path), "stages.rl.advantage={name: grop}")
    assert done.returncode == 64
    assert done.stderr.count("grop") == 1, "said once, and not by every rank"
    assert "processes on its CPU" not in done.stderr
    assert not runs.run_dir(config).exists()


def test_data_that_cannot_be_used_are_not_tried_again(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": "a"}\n')
    config["stages"][0]["source"] = {"path": str(empty)}
    done = launched(recipe_of(config, tmp_path), "--restarts", "3")
    assert done.returncode == 65, done.stderr[-3000:]
    assert "2 processes on its CPU, which talk over gloo" in done.stderr
    assert 1 <= done.stderr.count("no restart: exit code 65 would come again") <= 2, "once per rank, of one start"
    assert done.stderr.count("attempts left") == 0 or "3/3 attempts left" in done.stderr


@pytest.mark.slow
def test_the_script_trains_a_generated_world_on_two_ranks(tmp_path: Path) -> None:
    """The world and its model are made by one process; the same command then has nothing to do."""
    for name in ("scripts", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "scripts" / "setup.sh").write_text("exit 0\n")
    given = [*SMALL, f"run.root={tmp_path}/runs", f"toy.cache={tmp_path}/cache"]
    command = ["bash", str(tmp_path / "scripts" / "train_video.sh"), "--gpus", "2", *given]
    done = shell(*command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "2 processes on its CPU, which talk over gloo" in done.stderr
    assert f"{tmp_path}/cache/base-" in done.stdout
    run = tmp_path / "runs" / "toy_video"
    assert (run / "FINISHED").exists()
    assert (run / "final").exists()
    assert len(list((run / "journal").glob("*rank-1*"))) + len(list((run / "checkpoints").iterdir())) > 0
    again = shell(*command)
    assert again.returncode == 0
    assert "is already finished" in again.stdout
