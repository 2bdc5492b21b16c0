"""Losses and gradient norms of a few steps of the tiny model, per kind of recipe, as text.

A refactor must not change them; a change that is meant to is made visible by editing `losses.json`
(`VLMRL_GOLDEN=write pytest tests/golden`). Numbers are compared to 1e-3, because other CPUs round differently.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.run.tracking import read_metrics

STORED = Path(__file__).with_name("losses.json")
SHARED = {"num_generations": 4, "prompts_per_step": 4, "generation_batch_size": 4, "max_new_tokens": 10}
CASES: dict[str, dict[str, Any]] = {
    "g2rpo_kl": {},
    "grpo_ground_truth_row": {
        "advantage": {"name": "grpo"},
        "rollout": SHARED | {"strategy": {"name": "offpolicy_gt", "gt_cot": "answer_only"}},
        "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "temporal_iou"}],
        "beta": 0.0,
    },
    "token_mean_two_updates": {
        "advantage": {"name": "grpo"},
        "reduce": {"name": "token_mean"},
        "updates_per_step": 2,
        "loss": {"name": "ppo_clip", "clip_high": 0.28},
        "freeze": [],
    },
}


def observed(config: dict[str, Any]) -> list[list[float]]:
    """[loss, gradient norm, reward] of every step."""
    lines = read_metrics(runs.run_dir(config) / "metrics.jsonl")
    return [[line["loss"], line["grad_norm"], line.get("reward", 0.0)] for line in lines if "grad_norm" in line]


@pytest.mark.parametrize("forward", ["shared_prefix", "repeat"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_golden(case: str, forward: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Both layouts of the training forward give the same stored numbers."""
    config = runs.small_config(*tiny_files, tmp_path, **CASES[case])
    config["eval"] = {}
    for stage in config["stages"]:
        stage["forward"] = forward
    assert runs.run(config) == 0, (tmp_path / "error.txt").read_text() if (tmp_path / "error.txt").exists() else ""
    numbers = observed(config)
    assert len(numbers) == 7
    assert any(norm > 0 for _, norm, _ in numbers[3:]), "the RL part must have a gradient"
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if os.environ.get("VLMRL_GOLDEN") == "write":
        stored[case] = [[float(f"{x:.6g}") for x in row] for row in numbers]
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
        pytest.skip("golden numbers written")
    for step, (now, before) in enumerate(zip(numbers, stored[case], strict=True)):
        assert now == pytest.approx(before, rel=1e-3, abs=1e-5), f"step {step}"


def test_a_rehearsal_changes_no_number(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """The largest micro-batch goes first in every stage (`train.rehearse`), and all numbers and weights are as without, to the last bit."""
    found: list[Any] = []
    for rehearse in (True, False):
        config = runs.small_config(*tiny_files, tmp_path / str(rehearse))
        config |= {"eval": {}, "train": {"rehearse": rehearse}}
        for stage in config["stages"]:
            stage["max_tokens_per_microbatch"] = 200
        assert runs.run(config) == 0
        whole = runs.outcome(config)
        found.append((observed(config), whole["weights"], whole["metrics"]))
    assert found[0] == found[1]
