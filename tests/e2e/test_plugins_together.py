"""An answer type, a method with a memory, a regulariser and a kind of stage, all from examples/, in one recipe and every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_polygon import PLUGIN, SUITE, data, vlmrl
from tests.support import runs
from vlmrl.run.tracking import read_metrics

__all__ = ["data"]
PLUGINS = [PLUGIN, "examples.rejection_sampling", "examples.entropy_weights", "examples.anchor_loss"]


def config_of(data: Path, model: Path, root: Path) -> dict[str, Any]:
    """A stage of the plug-in's kind and one of GRPO with the plug-ins' methods, both on rows and rewards of the plug-in's answer type."""
    rewards = [{"name": "answer_score"}, {"name": "format", "weight": 0.1}, {"name": "first_letter"}]
    methods = {
        "rewards": rewards,
        "advantage": {"name": "grpo"},
        "reweight": [{"name": "entropy_weights", "strength": 0.8}],
        "auxiliary_losses": [{"name": "anchor", "weight": 0.1}],
        "updates_per_step": 2,
        "beta": 0.0,
    }
    config = runs.small_config(model, data, root, **methods)
    rl = config["stages"][1] | {"source": {"path": "labelme.jsonl"}, "steps": 3}
    shared = {key: rl[key] for key in ("source", "freeze", "rollout", "rewards", "optim")}
    rft = shared | {"name": "rft", "kind": "rejection_sampling", "steps": 2, "best": 2, "min_reward": 0.0}
    config |= {"stages": [rft, rl], "plugins": ["tests.support.plugin_rewards", *PLUGINS]}
    config["eval"] = {"source": {"path": "test.jsonl"}, "limit": 4, "max_new_tokens": 8}
    return config


def recipe_of(config: dict[str, Any], path: Path) -> str:
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.slow
def test_all_four_in_every_command(data: Path, tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config_of(data, tiny_files[0], tmp_path / "whole")
    killed = config_of(data, tiny_files[0], tmp_path / "killed")
    done = vlmrl("check", recipe_of(whole, tmp_path / "whole.yaml"))
    assert done.returncode == 0, done.stderr
    assert "data: ok" in done.stdout
    done = vlmrl("train", str(tmp_path / "whole.yaml"))
    assert done.returncode == 0, done.stderr

    recipe = recipe_of(killed, tmp_path / "killed.yaml")
    for point in ("step.before_update@2", "rollout.chunk@4"):  # within the plug-in's stage, and within GRPO
        monkeypatch.setenv("VLMRL_FAULT", f"{point}:kill")
        assert vlmrl("train", recipe).returncode == -9, f"{point} is never passed"
    monkeypatch.delenv("VLMRL_FAULT")
    done = vlmrl("train", recipe)
    assert done.returncode == 0, done.stderr
    assert runs.outcome(killed) == runs.outcome(whole)
    run = runs.run_dir(killed)
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "grad_norm" in line]
    assert [line["stage"] for line in lines] == ["rft"] * 2 + ["rl"] * 3
    assert lines[-1]["auxiliary/anchor"] > 0
    assert any("polygon_iou" in key for line in read_metrics(run / "metrics.jsonl") for key in line)

    suite = tmp_path / "outlines.yaml"
    suite.write_text(SUITE)
    for label, model in (("rft", run / "stages" / "rft"), ("rl", run / "final")):
        done = vlmrl("eval", str(model), "--suite", str(suite), "--data-root", str(data), "--device", "cpu", "--out", str(tmp_path / label))
        assert done.returncode == 0, done.stderr
    done = vlmrl("compare", str(tmp_path / "rft"), str(tmp_path / "rl"), "--plugin", PLUGIN, "--out", str(tmp_path / "page"))
    assert done.returncode == 0, done.stderr
    assert "polygon IoU" in (tmp_path / "page" / "comparison.html").read_text(encoding="utf-8")
    (run / "report.html").unlink()
    done = vlmrl("view", str(run), "--save", str(run))
    assert done.returncode == 0, done.stderr
    assert "polygon IoU" in (run / "report.html").read_text(encoding="utf-8")
