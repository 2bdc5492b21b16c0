"""Small runs whose rows are the turns of episodes in `toy_desk`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import runs
from tests.support.given import make_model
from tests.support.reports import written


def small_episodes(model: Path, world: Path, root: Path, **stage: Any) -> dict[str, Any]:
    """One GRPO stage of a few steps on three tasks, with files made by `tests.support.tiny`."""
    tasks = root / "tasks.jsonl"
    rows = [{"id": f"desk-{n}", "environment": {"length": n}} for n in (2, 3, 4)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = runs.small_config(model, world, root)
    rl = config["stages"][1] | {
        "source": {"path": str(tasks)},
        "answer_format": "answer_only",
        "environment": {"name": "toy_desk", "max_turns": 3, "workers": 1},
        "history": {"screens": 1, "actions": False},
        "rewards": [{"name": "environment_reward"}, {"name": "first_letter"}],
        "advantage": {"name": "gigpo"},
        "beta": 0.0,
        "steps": 3,
    }
    rl["rollout"] = {
        "num_generations": 3,
        "prompts_per_step": 4,
        "generation_batch_size": 2,
        "max_new_tokens": 6,
    }
    return config | {"stages": [rl | stage], "eval": {}}


def family_model(family: str, folder: Path) -> Path:
    """A tiny model of a family without code of its own, with a report that keeps all promises."""
    return written(make_model(family, folder), layouts=("repeat", "fork", "shared_prefix"), model_type=family)


def family_episodes(family: str, model: Path, root: Path, *, sharding: str = "ddp", choice: str = "generic") -> dict[str, Any]:
    """Two steps of whole conversations of two turns in `toy_desk`, in which the tower trains too. `choice`: `model.family`."""
    root.mkdir(exist_ok=True)
    config = small_episodes(model, root, root, history={}, steps=2, freeze=[])
    config["model"]["family"] = choice
    config["train"] = {"sharding": sharding}
    config["checkpoint"] = {"every": 1}
    (stage,) = config["stages"]
    stage["environment"] |= {"max_turns": 2}
    stage["rollout"] |= {"num_generations": 2, "prompts_per_step": 2, "generation_batch_size": 1, "max_new_tokens": 4}
    if family == "smolvlm":
        config["plugins"] += ["tests.support.numerals"]
    return config
