"""`vlmrl train` from the command line: what stands at the end of its output can be used, also when the run was finished before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support import runs
from vlmrl.evals.ask.models import model_folder

ROOT = Path(__file__).parents[2]


def train(recipe: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60"}
    done = subprocess.run(
        [sys.executable, "-m", "vlmrl", "train", str(recipe)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_end_of_a_run_says_where_its_things_are(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    config["stages"] = [{**config["stages"][0], "steps": 1}]
    config["eval"] |= {"at_start": False, "every": None}
    config["plugins"] = []
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(config))
    first, again = train(recipe), train(recipe)
    assert first[-4:] == again[-4:]
    assert any("is already finished" in line for line in again)
    said = dict(line.split(":", 1) for line in first[-4:])
    assert model_folder(Path(said["model"].strip())) == tmp_path / "small" / "final"
    assert Path(said["report"].strip()).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert said["look"].endswith(f" view {tmp_path}/small")
    assert f" eval {tmp_path}/small/final --suite " in said["evaluate"]
