"""Rewards that a script, a notebook's cell or a function registers train in the trainer's process: a worker could not import them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.command import ROOT, script
from vlmrl import api
from vlmrl.errors import ConfigError
from vlmrl.protocols import reward
from vlmrl.run.listing import line_of
from vlmrl.run.tracking import read_metrics

REWARD = '''
import vlmrl


@vlmrl.reward("brief")
def brief(group, ctx, *, limit: int = 64) -> list[float | None]:
    """1 for answers of at most `limit` tokens."""
    return [float(len(rollout.ids) <= limit) for rollout in group.rollouts]
'''
CLOSURE = '''

def varied(most: int):
    @vlmrl.reward("varied")
    def share(group, ctx) -> list[float]:
        """Share of distinct characters among the first ones."""
        return [len(set(rollout.text[:most])) / most for rollout in group.rollouts]


varied(8)
'''
TRAIN = """
import json, sys

vlmrl.train(json.loads(open(sys.argv[1]).read()))
"""
NAMED = [{"name": "temporal_iou"}, {"name": "brief", "weight": 0.1}]


def recipe(files: tuple[Path, Path], root: Path, rewards: list[dict[str, Any]], **more: Any) -> Path:
    """Two steps of GRPO with these rewards and no plug-in."""
    config = runs.small_config(*files, root / "runs", rewards=rewards, steps=2, advantage={"name": "grpo"}, beta=0.0)
    config |= {"stages": config["stages"][1:], "plugins": [], "eval": {}} | more
    root.mkdir(parents=True, exist_ok=True)
    (root / "recipe.json").write_text(json.dumps(config))
    return root / "recipe.json"


def steps_of(root: Path, reward: str) -> list[float]:
    """The share of answers that a reward has judged, step by step."""
    lines = read_metrics(root / "runs" / "small" / "metrics.jsonl")
    return [line[f"rewards/{reward}/judged"] for line in lines if f"rewards/{reward}/judged" in line]


def test_a_reward_of_a_script_trains(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """`python script.py`, in an interpreter of its own. The run that has ended is at its stage's last step."""
    file = tmp_path / "mine.py"
    file.write_text(REWARD + TRAIN)
    given = recipe(tiny_files, tmp_path, NAMED)
    variables = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, str(file), str(given)], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.replace("\n", " ").count("reward 'brief' runs in the trainer's process, without a deadline") == 1
    assert steps_of(tmp_path, "brief") == [1.0, 1.0]
    line = line_of(tmp_path / "runs" / "small")
    assert (line.status, line.stage, line.step, line.steps) == ("finished", "rl", 2, 2)


def test_a_reward_that_tells_nothing_ends_the_run_before_anything_is_evaluated_or_trained(
    tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the second stage. One line for all rows; it was one for each, after the evaluation and the stages before."""
    monkeypatch.setattr(reward, "_entries", dict(reward._entries))

    @reward("kind")
    def kind(group: Any, ctx: Any) -> list[float]:
        """1 for every answer."""
        return [1.0] * len(group.rollouts)

    config = runs.small_config(*tiny_files, tmp_path / "runs", rewards=[{"name": "kind"}], steps=1)
    assert [stage["kind"] for stage in config["stages"]] == ["sft", "grpo"]
    with pytest.raises(ConfigError) as caught:
        api.train(config, quiet=True)
    (line,) = caught.value.problems
    assert re.match(r"stage 'rl': row '[^']+' \([^)]+\): junk scores 1, the gold answer '[^']+' 1; so do all \d+ rows tried: ", line)
    assert line.endswith("no reward tells right from wrong; add one: vlmrl list reward")
    run = tmp_path / "runs" / "small"
    assert not (run / "eval" / "base.jsonl").exists()
    assert not (run / "metrics.jsonl").exists() or read_metrics(run / "metrics.jsonl") == []


def test_rewards_of_a_cell_train(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A cell is text that is run in the namespace of `__main__`; one of its rewards is made by a function."""
    cell = REWARD + CLOSURE + TRAIN
    file = tmp_path / "notebook.py"
    file.write_text(f"exec(compile({cell!r}, '<cell 1>', 'exec'), {{'__name__': '__main__'}})\n")
    given = recipe(tiny_files, tmp_path, [*NAMED, {"name": "varied", "weight": 0.1}])
    done = script(file, str(given), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rewards 'brief', 'varied' run in the trainer's process" in done.stdout.replace("\n", " ")
    assert steps_of(tmp_path, "brief") == steps_of(tmp_path, "varied") == [1.0, 1.0]


@pytest.mark.parametrize(("isolate", "said"), [(True, "remove 'isolate: true'"), (False, None)])
def test_a_recipe_says_where_it_runs(isolate: bool, said: str | None, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A worker that does not know the reward is refused when the recipe is loaded; nothing is said of what the recipe says itself."""
    file = tmp_path / "mine.py"
    checked = "print(vlmrl.check(json.loads(open(sys.argv[1]).read()), quiet=True).notes)"
    file.write_text(REWARD + TRAIN.replace("vlmrl.train(json.loads(open(sys.argv[1]).read()))", checked))
    given = recipe(tiny_files, tmp_path, [NAMED[0], NAMED[1] | {"isolate": isolate}])
    done = script(file, str(given), cwd=tmp_path)
    assert "without a deadline" not in done.stdout
    if said is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode != 0
    assert "stages.rl.rewards.1.isolate: reward 'brief' is registered by a script or a notebook" in done.stderr
    assert said in done.stderr


def test_a_module_that_no_plugin_names_is_imported_by_the_workers(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A script imports its reward from the file beside it: a worker can do so too, beside the plug-ins."""
    (tmp_path / "my_rewards.py").write_text(REWARD)
    file = tmp_path / "mine.py"
    file.write_text("import my_rewards, vlmrl\n" + TRAIN)
    given = recipe(tiny_files, tmp_path, NAMED, plugins=["tests.support.plugin_rewards"])
    done = script(file, str(given), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without a deadline" not in done.stdout
    assert steps_of(tmp_path, "brief") == [1.0, 1.0]
