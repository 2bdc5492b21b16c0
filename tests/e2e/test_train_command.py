"""`vlmrl train` from the command line: what stands at the end of its output can be used, also when the run was finished before."""

from __future__ import annotations

import json
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


ANSWERED = """
import sys
from vlmrl.extras.resume.answer import answered
print("answered:", answered(sys.argv[1], sys.argv[2:]))
print("heavy:", sorted({"torch", "transformers", "scipy", "numpy"} & set(sys.modules)))
"""


def answered(recipe: Path, *overrides: str) -> list[str]:
    """What `answered` says in a process of its own, whether it did, and what it has imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ANSWERED, str(recipe), *overrides], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_finished_run_is_answered_from_its_files(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Without torch where recipe, version and files are as they were; anything else is left to the full start."""
    config = runs.small_config(*tiny_files, tmp_path)
    config["stages"] = [{**config["stages"][0], "steps": 1}]
    config["eval"] |= {"at_start": False, "every": None, "limit": 2}
    config["plugins"] = []
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "small"
    recipe.write_text(yaml.safe_dump(config))
    assert answered(recipe)[-2] == "answered: False", "there is no run"
    assert runs.run(config) == 0
    history = (run / "run.json").read_bytes()
    said = answered(recipe)
    assert said[-2:] == ["answered: True", "heavy: []"]
    assert "already finished" in said[0]
    assert [line.split(":")[0] for line in said[-6:-2]] == ["model", "report", "evaluate", "look"]
    mark = json.loads((run / "FINISHED").read_text())
    assert set(mark["come_to"]) <= set(said)
    assert (run / "run.json").read_bytes() == history, "no start that trains is noted"

    assert answered(recipe, "run.seed=1")[-2] == "answered: False", "which is refused by the full start"
    assert answered(recipe, "eval.limit=3")[-2] == "answered: False"
    for wrong in ({**mark, "vlmrl": "0.0.0"}, {"wall": 1.0}, []):
        (run / "FINISHED").write_text(json.dumps(wrong))
        assert answered(recipe)[-2] == "answered: False", wrong
    (run / "FINISHED").write_text(json.dumps(mark))
    report = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    assert answered(recipe)[-2] == "answered: False"
    (run / "report.html").write_bytes(report)
    weights = run / "final" / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:-1] + b"x")
    assert answered(recipe)[-2] == "answered: False", "it is made again"
    weights.write_bytes(content)
    assert answered(recipe)[-2] == "answered: True"


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
    assert said["evaluate"].endswith(f" eval {tmp_path}/small/final --rows {tiny_files[1]}/test.jsonl")
