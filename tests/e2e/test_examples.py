"""The examples of a reward, a data set, an evaluation task and a plug-in package, used as a user uses them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.my_reward import near_number
from tests.support import command, runs
from tests.support.builders import group, sample
from vlmrl.config.load import load
from vlmrl.protocols import RewardContext
from vlmrl.run.tracking import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples" / "my_recipe.yaml"
PACKAGE = ROOT / "examples" / "my_package"


def shell(*words: str) -> str:
    """Output of a command with the repository importable; its text if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return output(done)


def vlmrl(*arguments: str, path: Path | None = None) -> str:
    return output(command.vlmrl(*arguments, path=path))


def output(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set, written by its script."""
    folder = tmp_path_factory.mktemp("dots")
    shell(sys.executable, "examples/my_dataset.py", str(folder))
    return folder


def small(model: Path, dots: Path, root: Path) -> dict[str, Any]:
    """The recipe, as small as the tiny model."""
    config = load(RECIPE, []).config.model_dump(mode="json")
    config["run"] = {"name": "dots", "root": str(root), "trackers": [], "threads": 1}
    config["model"] |= {"path": str(model), "device": "cpu"}
    config["data"]["root"], config["eval"] = str(dots), {}
    stage = config["stages"][0]
    stage["steps"] = 2
    stage["rollout"] |= {"num_generations": 4, "prompts_per_step": 4, "max_new_tokens": 10}
    return config


def test_near_number_by_hand() -> None:
    texts = ["<answer>3</answer>", "<answer>5</answer>", "<answer>many</answer>", "3"]
    scores = near_number(group(texts, sample("3", gt={"number": 3})), RewardContext(), scale=2.0)
    assert scores == pytest.approx([1.0, math.exp(-1), 0.0, 0.0])
    assert near_number(group(texts, sample("a", gt={})), RewardContext()) == [None] * 4
    with pytest.raises(ValueError, match="near_number"):
        near_number(group(texts), RewardContext(), scale=0.0)


def test_the_recipe_is_checked_on_the_data_set(dots: Path, tiny_files: tuple[Path, Path]) -> None:
    """Rows, pictures and gold answers, with the reward of the example."""
    out = vlmrl("check", str(RECIPE), f"data.root={dots}", f"model.path={tiny_files[0]}")
    assert "methods: ok" in out
    assert "48" in out


def test_the_recipe_trains(dots: Path, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = small(tiny_files[0], dots, tmp_path)
    config["stages"][0]["rewards"].append({"name": "first_letter"})  # something that an untrained model earns
    config["plugins"] = [*config["plugins"], "tests.support.plugin_rewards"]
    assert runs.run(config) == 0, (tmp_path / "error.txt").read_text() if (tmp_path / "error.txt").exists() else ""
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
    assert len(lines) == 2
    assert all(line["grad_norm"] > 0 and "rewards/near_number/mean" in line for line in lines)


def test_the_suite_evaluates(dots: Path, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    arguments = ("--suite", "examples/my_suite.yaml", "--data-root", str(dots), "--limit", "4", "--out", str(tmp_path / "out"))
    vlmrl("eval", str(tiny_files[0]), *arguments)
    records = [json.loads(line) for line in (tmp_path / "out" / "dots.jsonl").read_text().splitlines()]
    assert len(records) == 4
    summary = (tmp_path / "out" / "summary.json").read_text()
    assert "relative_accuracy" in summary


def test_the_package_is_installed_and_used(dots: Path, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Installed into a folder of its own, without the network; the recipe names it under `plugins:`."""
    site = tmp_path / "site"
    copy = tmp_path / "source"
    shell("cp", "-r", str(PACKAGE), str(copy))  # a build writes beside its sources
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    shell(sys.executable, "-m", "pip", "install", *options, str(copy))
    assert (site / "dotcount" / "filters.py").is_file()
    listed = json.loads(vlmrl("list", "filter", "--json", "--plugin", "dotcount", path=site))
    assert "at_least" in {method["name"] for method in listed["filter"]}
    extra = ("plugins=[examples.my_reward, dotcount]", "stages.rl.filters=[{name: at_least, tokens: 2}]")
    out = vlmrl("check", str(RECIPE), "--no-data", *extra, path=site)
    assert "methods: ok" in out
