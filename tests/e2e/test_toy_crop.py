"""The recipe toy_crop from its world to its evaluation, cut down to seconds: the teacher sees the part of each picture that a row names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vlmrl
from vlmrl.run.tracking import read_metrics

RECIPE = Path(__file__).parents[2] / "configs" / "recipes" / "toy_crop.yaml"


@pytest.mark.slow
def test_toy_crop_runs_from_its_world_to_its_evaluation(tmp_path: Path) -> None:
    short = {
        "run.root": str(tmp_path / "runs"),
        "toy.cache": str(tmp_path / "cache"),
        "toy.world.pretrain": 8,
        "toy.world.train": 8,
        "toy.world.validation": 2,
        "toy.world.test": 4,
        "toy.base.steps": 2,
        "toy.base.batch": 4,
        "stages.distill.steps": 2,
        "stages.distill.rollout.prompts_per_step": 4,
        "stages.distill.rollout.num_generations": 2,
        "eval.limit": 4,
    }
    run = vlmrl.train(RECIPE, [*(f"{key}={value}" for key, value in short.items()), "run.trackers=[]"], quiet=True)
    assert (run / "final" / "config.json").is_file()
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "distill/gap" in line]
    assert len(lines) == 2
    # sixteen visual tokens of the whole, four of the quarter
    assert all(line["distill/prompt_tokens/student"] - line["distill/prompt_tokens/teacher"] == 12 for line in lines)
    seen = [json.loads(line) for line in (run / "teacher" / "distill.rank-0.jsonl").read_text().splitlines()]
    assert len(seen) == 8
    assert len({key for line in seen for side in ("student", "teacher") for key in line[side]["media"]}) == 16
