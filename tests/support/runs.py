"""Small whole runs in child processes, and what must be equal between two of them.

Children fork from a server that has imported everything once, so a run costs its own work and not seconds of imports.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.preload"])


def small_config(model: Path, world: Path, root: Path, **stage: Any) -> dict[str, Any]:
    """A supervised stage and a GRPO stage of a few steps each, on files made by `tests.support.tiny`."""
    optim = {"lr": 1e-3, "warmup": 0.5}
    return {
        "run": {"name": "small", "root": str(root), "trackers": [], "threads": 1},
        "model": {"path": str(model), "device": "cpu"},
        "data": {"root": str(world)},
        "media": {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 32},
        "eval": {"source": {"path": "test.jsonl"}, "limit": 6, "max_new_tokens": 8, "batch_prompts": 3, "every": 3},
        "checkpoint": {"every": 2},
        "stages": [
            {
                "name": "sft",
                "kind": "sft",
                "source": {"path": "sft.jsonl"},
                "steps": 3,
                "batch": 4,
                "thought_dropout": 0.5,
                "optim": optim,
            },
            {
                "name": "rl",
                "kind": "grpo",
                "source": {"path": "train.jsonl"},
                "steps": 4,
                "freeze": ["vision"],
                "rollout": {
                    "num_generations": 4,
                    "prompts_per_step": 4,
                    "generation_batch_size": 2,
                    "max_new_tokens": 10,
                    "strategy": {"name": "plain"},
                },
                "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}, {"name": "first_letter"}],
                "advantage": {"name": "g2rpo"},
                "beta": 0.01,
                "optim": optim,
            }
            | stage,
        ],
        "plugins": ["tests.support.plugin_rewards"],
    }


def _run(
    config: Mapping[str, Any],
    fault: str | None,
    profile_steps: int = 0,
    said: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Body of a child: exit code 0, or that of the error. What it says to a person goes to the file `said`,
    and the error's message to `error.txt` beside it (by default in the folder of runs)."""
    os.environ.update(variables or {})
    if fault:
        os.environ["VLMRL_FAULT"] = fault
    import torch
    from rich.console import Console

    from vlmrl.config.load import loaded
    from vlmrl.config.schema import Config
    from vlmrl.errors import VlmrlError
    from vlmrl.run.start import Places, train_from
    from vlmrl.run.ui import Ui
    from vlmrl.train import dist

    class Written(Ui):
        """Keeps what is said in a file beside the run."""

        def say(self, text: str) -> None:
            Path(cfg.run.root).mkdir(parents=True, exist_ok=True)  # what a recipe is warned of is said before there is a run
            with open(Path(cfg.run.root, "said.txt"), "a") as file:
                file.write(text + "\n")

    torch.set_num_threads(1)
    cfg = Config.model_validate(config)
    ui = Written(quiet=True) if said is None else Ui(Console(file=said.open("w")))
    try:
        train_from(loaded(cfg), Places(model=cfg.model.path, data=Path(cfg.data.root)), ui, profile_steps=profile_steps)
    except VlmrlError as error:
        dist.leaving(error)
        (Path(cfg.run.root) if said is None else said.parent).joinpath("error.txt").write_text(str(error))
        raise SystemExit(error.exit_code) from None


def start(
    config: Mapping[str, Any],
    fault: str | None = None,
    profile_steps: int = 0,
    said: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Any:
    """A running child, with these variables beside those of its parent."""
    child = _CONTEXT.Process(target=_run, args=(config, fault, profile_steps, said, variables))
    child.start()
    return child


def run(
    config: Mapping[str, Any],
    fault: str | None = None,
    *,
    timeout: float = 180.0,
    profile_steps: int = 0,
    said: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run to the end; the exit code (negative: killed by that signal)."""
    child = start(config, fault, profile_steps, said, variables)
    child.join(timeout)
    if child.is_alive():
        child.kill()
        child.join()
        raise TimeoutError(f"the run did not end within {timeout} s")
    return child.exitcode


def run_dir(config: Mapping[str, Any]) -> Path:
    return Path(config["run"]["root"]) / config["run"]["name"]


def outcome(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that must be equal, to the bit, between an uninterrupted run and a resumed one."""
    from vlmrl.run.tracking import read_metrics, without_clock

    path = run_dir(config)
    stages = [f"stages/{stage['name']}" for stage in config["stages"]]
    evals = {p.name: sorted(p.read_text().splitlines()) for p in sorted((path / "eval").glob("*.jsonl"))}
    return {
        "weights": {name: _sha256(path / name / "model.safetensors") for name in (*stages, "final")},
        "metrics": without_clock(read_metrics(path / "metrics.jsonl")),
        "eval": evals,
        "state": json.loads((sorted((path / "checkpoints").glob("step-*"))[-1] / "state.json").read_text())["run"],
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kill_at_random(config: Mapping[str, Any], seed: int, longest: float) -> int:
    """Start, wait for the lock, kill -9 after a random time up to `longest` seconds; the exit code."""
    child = start(config)
    lock = run_dir(config) / "LOCK"
    deadline = time.monotonic() + 60
    while not (lock.exists() and lock.read_text()) and child.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.join(random.Random(seed).uniform(0, longest))
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    return child.exitcode
