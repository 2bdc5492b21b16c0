"""A run is given more steps: it goes on from its last checkpoint, and ends with the bits of a run that had them from the start."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from vlmrl.errors import CheckpointError, ConfigError

Config = dict[str, Any]
CONSTANT = {"lr": 1e-3, "schedule": "constant", "warmup": 0.0}


def recipe(files: tuple[Path, Path], root: Path, steps: int, **more: Any) -> Config:
    """`small_config` with so many steps of its last stage; nothing in it depends on how many there are."""
    config = runs.small_config(*files, root, steps=steps, optim=CONSTANT, **more)
    config["stages"][0] |= {"steps": 1, "optim": CONSTANT}
    config["eval"] |= {"every": 2, "best": "miou"}
    return config


def longer(config: Config, root: Path, steps: int) -> Config:
    """The recipe with more steps, over a copy of its run."""
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["stages"][-1]["steps"] = steps
    if not runs.run_dir(out).exists():
        shutil.copytree(runs.run_dir(config), runs.run_dir(out))
    return out


def said(config: Config) -> str:
    return (Path(config["run"]["root"]) / "said.txt").read_text()


def error(config: Config) -> str:
    return (Path(config["run"]["root"]) / "error.txt").read_text()


@pytest.fixture(scope="module")
def short(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = recipe(tiny_files, tmp_path_factory.mktemp("short"), 2)
    assert runs.run(config) == 0
    return config


@pytest.fixture(scope="module")
def whole(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = recipe(tiny_files, tmp_path_factory.mktemp("whole"), 4)
    assert runs.run(config) == 0
    return runs.outcome(config)


def test_more_steps_give_the_bits_of_a_run_that_had_them_from_the_start(short: Config, whole: dict[str, Any], tmp_path: Path) -> None:
    config = longer(short, tmp_path, 4)
    before = (runs.run_dir(config) / "report.html").read_bytes()
    assert runs.run(config) == 0
    assert runs.outcome(config) == whole
    assert set(whole["eval"]) == {"base.jsonl", "sft.jsonl", "rl@2.jsonl", "rl.jsonl"}, "what was the end is a step within the stage now"
    assert json.loads((runs.run_dir(config) / "eval" / "order.json").read_text()) == ["base", "sft", "rl@2", "rl"]
    assert (runs.run_dir(config) / "report.html").read_bytes() != before
    assert (runs.run_dir(config) / "FINISHED").exists()
    assert "stage 'rl': 2 steps in the run, 4 now; 2 are done" in said(config)
    assert "steps from the start" not in said(config), "nothing would have been different"


@pytest.mark.parametrize(
    "point",
    cases.some(["rollout.chunk@1", "step.after_log@1", "step.after_log@2", "stage.exported@1"], {"rollout.chunk@1", "stage.exported@1"}),
)
def test_killed_as_it_goes_on(point: str, short: Config, whole: dict[str, Any], tmp_path: Path) -> None:
    config = longer(short, tmp_path, 4)
    assert runs.run(config, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(config) == 0
    assert runs.outcome(config) == whole


def test_best_weights_of_the_former_end_are_named_by_its_step(short: Config, tmp_path: Path) -> None:
    config = longer(short, tmp_path, 4)
    path = runs.run_dir(config)
    best = path / "eval" / "best.json"
    former = json.loads(best.read_text())
    if former["stage"] != "rl":  # as if the end had been the best so far
        shutil.rmtree(path / "best")
        shutil.copytree(path / "final", path / "best" / "rl")
        seal = json.loads((path / "best" / "rl" / "manifest.json").read_text())["digest"]
        best.write_text(json.dumps({**former, "stage": "rl", "seal": seal, "value": 1.0}))
    assert runs.run(config) == 0
    assert json.loads(best.read_text())["stage"] == "rl@2"
    assert [one.name for one in (path / "best").iterdir()] == ["rl@2"]
    assert json.loads((path / "best" / "rl@2" / "vlmrl.json").read_text())["origin"]["stage"] == "rl@2"
    assert runs.run(config) == 0, "the seal is that of the renamed folder"


def test_what_may_not_change_is_refused(short: Config, tmp_path: Path) -> None:
    fewer = longer(short, tmp_path, 1)
    assert runs.run(fewer) == ConfigError.exit_code
    assert "1, but 2 of 2 steps are done" in error(fewer)
    earlier = longer(short, tmp_path, 2)
    earlier["stages"][0]["steps"] = 2
    assert runs.run(earlier) == ConfigError.exit_code
    assert "stages.sft.steps: 1 in the run, 2 now" in error(earlier)
    assert "only the last stage ('rl')" in error(earlier)
    other = longer(short, tmp_path, 4)
    other["run"]["seed"] = 5
    assert runs.run(other) == ConfigError.exit_code
    assert "run.seed: 0 in the run, 5 now" in error(other)
    assert "stages.1.steps: 2 in the run, 4 now" in error(other)
    same = longer(short, tmp_path, 2)
    assert runs.run(same) == 0
    assert "is already finished" in said(same), "a refused start leaves the run as it was"
    shutil.rmtree(runs.run_dir(same) / "checkpoints")
    assert runs.run(longer(short, tmp_path, 4)) == CheckpointError.exit_code
    assert "no checkpoint is left to go on from to 4 steps" in error(same)


def test_a_schedule_over_the_steps_is_said(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(tiny_files, tmp_path, 2, rollout={"num_generations": 4, "prompts_per_step": 4, "max_new_tokens": 6})
    config["stages"] = config["stages"][1:]
    config["stages"][0] |= {"optim": {"lr": 1e-3, "schedule": "linear"}, "reweight": [{"name": "d3s_tokens"}]}
    del config["eval"]
    assert runs.run(config) == 0
    config["stages"][0]["steps"] = 3
    assert runs.run(config) == 0
    text = said(config)
    assert "in a run of 3 steps from the start, the learning rate would be another from step 2 on (optim.schedule: linear" in text
    assert "(reweight 'd3s_tokens') would have acted otherwise" in text
    assert "share of the stage that is done" in text


def test_a_stopped_run_may_end_earlier_and_later(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Answers are sampled a step ahead, so the checkpoints hold steps in flight that the other number of steps knows otherwise."""
    ahead = {"num_generations": 4, "prompts_per_step": 4, "max_new_tokens": 6, "staleness": 1}
    config = recipe(tiny_files, tmp_path, 3, rollout=ahead, importance_correction={"name": "tis"})
    config["stages"] = config["stages"][1:]
    del config["eval"]
    assert runs.run(config, "step.after_log@2:term") == 75
    config["stages"][0]["steps"] = 2
    assert runs.run(config) == 0
    config["stages"][0]["steps"] = 4
    assert runs.run(config) == 0
    assert "the answers of step 3 would be of older weights (rollout.staleness: 1)" in said(config)
    lines = [json.loads(line) for line in (runs.run_dir(config) / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["stage"] == "rl"] == [1, 2, 3, 4]
