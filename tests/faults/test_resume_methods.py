"""Methods with a memory, killed and resumed: multipliers, running moments, samplers with state and replayed rows come back to the bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs

STATEFUL: dict[str, dict[str, Any]] = {
    "moments_multipliers_replay": {
        "advantage": {"name": "ema_grpo"},
        "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.0}, {"name": "first_letter"}],
        "constraints": [
            {"name": "lagrangian", "thresholds": {"format": 0.9}, "min_applicable": 1},
            {"name": "adaptive_kl", "target": 0.01},
            {"name": "entropy_band"},
        ],
        "sampler": {"name": "vade"},
        "rollout": {
            "num_generations": 4,
            "prompts_per_step": 4,
            "generation_batch_size": 2,
            "max_new_tokens": 10,
            "strategy": {"name": "replay", "success_at": 0.0, "max_age": 50},
        },
        "updates_per_step": 2,
    },
    "averaged_reference": {
        "advantage": {"name": "grpo"},
        "rewards": [{"name": "first_letter"}, {"name": "format", "weight": 0.1}],
        "reward_shaping": [{"name": "care_consistency", "reward": "first_letter", "every": 1, "decay": 0.5}],
        "beta": 0.0,
        "freeze": [],
    },
    "steps_of_fixed_shape": {
        "rollout": {
            "num_generations": 4,
            "prompts_per_step": 4,
            "generation_batch_size": 2,
            "max_new_tokens": 10,
            "graphs": True,
        },
    },
    "refill_budget_guidance": {
        "advantage": {"name": "spo"},
        "filters": [{"name": "difficulty_band", "reward": "first_letter", "low": 0.01, "high": 0.99}],
        "dynamic_sampling": {"max_batches": 3},
        "sampler": {"name": "prioritized"},
        "budget": {"name": "knapsack", "low": 2, "high": 8},
        "rollout": {
            "num_generations": 4,
            "prompts_per_step": 4,
            "generation_batch_size": 2,
            "max_new_tokens": 10,
            "strategy": {"name": "sage"},
        },
    },
}
POINTS = ["rollout.chunk@3", "step.before_update@2", "ckpt.after_rename@1"]
"""One run is killed at all of these, each time at that passage since it was started again."""


@pytest.mark.parametrize("case", cases.some(sorted(STATEFUL), {"moments_multipliers_replay", "refill_budget_guidance"}))
def test_killed_with_stateful_methods(case: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole = runs.small_config(*tiny_files, tmp_path / "whole", **STATEFUL[case])
    (tmp_path / "whole").mkdir()
    assert runs.run(whole) == 0, (tmp_path / "whole" / "error.txt").read_text()
    expected = runs.outcome(whole)
    state = expected["state"]
    if case == "moments_multipliers_replay":
        memories = state["memories"]
        assert memories["advantage.ema_grpo"]
        assert {name for name in memories if name.startswith("constraint.")} == {
            "constraint.lagrangian",
            "constraint.adaptive_kl",
            "constraint.entropy_band",
        }
        assert memories["strategy"]["buffer"], "the test must have something to forget"
    if case == "averaged_reference":
        assert state["memories"]["consistency_N"]["steps"] == 4
    mine = copy.deepcopy(whole)
    mine["run"]["root"] = str(tmp_path / "killed")
    for point in POINTS:
        assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
