"""The recipes toy_zoom, toy_clip and toy_lake from world to evaluation, in seconds; a killed run with tools ends with the same bits."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlmrl
from tests.support import runs
from tests.support.media import make_video
from vlmrl.extras.agents.stripes import make_stripes, paint_stripes
from vlmrl.extras.toy.picture import png
from vlmrl.run.tracking import read_metrics

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fewest"), [("toy_zoom", {2.0}), ("toy_clip", {2.0}), ("toy_lake", {*range(3, 16)})])
def test_a_recipe_of_episodes_runs_from_its_world_to_its_evaluation(name: str, fewest: set[float], tmp_path: Path) -> None:
    short = {
        "run.root": str(tmp_path / "runs"),
        "toy.cache": str(tmp_path / "cache"),
        "toy.world.pretrain": 4,
        "toy.world.train": 2,
        "toy.world.test": 2,
        "toy.base.steps": 1,
        "toy.base.batch": 2,
        "stages.rl.steps": 1,
        "stages.rl.rollout.prompts_per_step": 2,
        "stages.rl.rollout.num_generations": 2,
        "stages.rl.rollout.max_new_tokens": 8,
        "eval.limit": 2,
        "eval.max_new_tokens": 8,
    }
    run = vlmrl.train(RECIPES / f"{name}.yaml", [*(f"{key}={value}" for key, value in short.items()), "run.trackers=[]"], quiet=True)
    assert (run / "final" / "config.json").is_file()
    (line,) = [line for line in read_metrics(run / "metrics.jsonl") if "environment/attempts" in line]
    assert (line["environment/attempts"], line["environment/faults"]) == (4.0, 0.0)
    records = [json.loads(record) for record in (run / "eval" / "rl.jsonl").read_text().splitlines()]
    assert [record["answer_type"] for record in records] == ["episode"] * 2
    assert {tuple(record["gold"]) for record in records} <= {(1.0, turns) for turns in fewest}, "worlds know the fewest turns"


def tools_config(model: Path, world: Path, root: Path) -> dict[str, Any]:
    """Two pictures and a video with tools. Nothing that a model without training writes is a call, so a reward of its text teaches."""
    media = root / "media"
    media.mkdir(parents=True)
    for n in range(2):
        (media / f"{n}.png").write_bytes(png(paint_stripes(make_stripes(n))))
    noise = np.random.default_rng(0).integers(0, 256, (8, 56, 56, 3), dtype=np.uint8)
    make_video(media / "v.mp4", noise, fps=4)
    shared = {"task": "t", "answer_type": "exact_text", "answer": "down", "prompt": "Which way?"}
    rows = [{**shared, "id": f"p{n}", "image": f"{n}.png"} for n in range(2)] + [{**shared, "id": "v", "video": "v.mp4"}]
    (media / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = runs.small_config(model, world, root / "runs")
    rl = config["stages"][1] | {
        "source": {"path": "rows.jsonl"},
        "answer_format": "answer_only",
        "environment": {"name": "image_tools", "max_turns": 2, "workers": 1, "overview": 2},
        "rewards": [{"name": "environment_reward"}, {"name": "tool_calls", "weight": 0}, {"name": "first_letter"}],
        "advantage": {"name": "trajectory"},
        "reward_shaping": [{"name": "otc", "reward": "environment_reward", "calls": "tool_calls"}],
        "beta": 0.0,
        "steps": 2,
    }
    rl["rollout"] = {"num_generations": 2, "prompts_per_step": 3, "generation_batch_size": 2, "max_new_tokens": 5}
    evaluation = {"source": {"path": "rows.jsonl"}, "limit": 2, "max_new_tokens": 5, "batch_prompts": 1}
    return config | {"stages": [rl], "data": {"root": str(media)}, "eval": evaluation}


@pytest.mark.slow
def test_rows_with_tools_train_and_resume_to_the_bit(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole = tools_config(*tiny_files, tmp_path / "whole")
    assert runs.run(whole, timeout=900) == 0, Path(whole["run"]["root"], "error.txt").read_text()
    expected = runs.outcome(whole)
    lines = [line for line in expected["metrics"] if "environment/attempts" in line]
    assert [line["environment/attempts"] for line in lines] == [6.0, 6.0]
    assert all(line["environment/faults"] == 0 and line["environment/invalid"] > 0 for line in lines)
    assert all(line["sampling/logp_gap"] < 1e-5 for line in lines)
    mine = copy.deepcopy(whole)
    mine["run"]["root"] = str(tmp_path / "killed")
    assert runs.run(mine, f"rollout.turn@{random.Random(0).randint(2, 5)}:kill", timeout=900) == -9
    assert runs.run(mine, timeout=900) == 0
    assert runs.outcome(mine) == expected
