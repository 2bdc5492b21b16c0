"""Plug-ins from examples/: a method with a need and a memory, a regulariser and a kind of stage, trained, killed and resumed."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cases, runs
from tests.support.builders import inputs
from tests.support.command import vlmrl
from vlmrl.train.tensors import read_tensors

RECIPE = "examples/plugins.yaml"
PLUGINS = ["examples.rejection_sampling", "examples.entropy_weights", "examples.anchor_loss"]
REWARDS = [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}, {"name": "first_letter", "isolate": False}]
"""In the trainer's process: a worker would import all three plug-ins, and the trainer with them, at every start."""


def config_of(files: tuple[Path, Path], root: Path) -> dict[str, Any]:
    """Two steps of the plug-in's stage, then three of GRPO with the other two."""
    methods = {
        "advantage": {"name": "grpo"},
        "reweight": [{"name": "entropy_weights", "strength": 0.8}],
        "auxiliary_losses": [{"name": "anchor", "weight": 0.1}],
        "updates_per_step": 2,
        "steps": 3,
        "beta": 0.0,
    }
    config = runs.small_config(*files, root, **methods)
    rl = config["stages"][1]
    rl["rewards"] = REWARDS
    rft = {key: copy.deepcopy(rl[key]) for key in ("source", "freeze", "rollout", "rewards", "optim")}
    config["stages"] = [rft | {"name": "rft", "kind": "rejection_sampling", "steps": 3, "best": 2, "min_reward": 0.0}, rl]
    config["plugins"] = ["tests.support.plugin_rewards", *PLUGINS]
    config["eval"] = {"source": {"path": "test.jsonl"}, "limit": 4, "max_new_tokens": 8}
    return config


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    root = tmp_path_factory.mktemp("plugins")
    config = config_of(tiny_files, root)
    assert runs.run(config) == 0, (root / "error.txt").read_text() if (root / "error.txt").exists() else ""
    return config, runs.outcome(config)


def lines_of(outcome: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    return [line for line in outcome["metrics"] if line["stage"] == stage and "grad_norm" in line]


def test_the_stage_trains(uninterrupted: tuple[dict[str, Any], dict[str, Any]]) -> None:
    lines = lines_of(uninterrupted[1], "rft")
    assert len(lines) == 3
    assert any(line["accepted"] > 0 and line["grad_norm"] > 0 for line in lines)
    assert all(line["accepted"] <= 2 * 4 for line in lines), "two of each of four groups at most"


def test_the_methods_act_and_remember(uninterrupted: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    config, outcome = uninterrupted
    lines = lines_of(outcome, "rl")
    assert len(lines) == 3
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert lines[-1]["auxiliary/anchor"] > 0, "after two updates the policy is away from its anchor"
    checkpoint = sorted((runs.run_dir(config) / "checkpoints").glob("step-*"))[-1]
    remembered = read_tensors(checkpoint / "memories.safetensors")["reweight.entropy_weights/sums"]
    assert remembered.shape == (3,)
    assert float(remembered[0]) > 0
    without = copy.deepcopy(config)
    without["run"]["root"] = str(tmp_path)
    del without["stages"][1]["reweight"], without["stages"][1]["auxiliary_losses"]
    assert runs.run(without) == 0
    other = runs.outcome(without)
    assert other["weights"]["stages/rft"] == outcome["weights"]["stages/rft"]
    assert other["weights"]["stages/rl"] != outcome["weights"]["stages/rl"]


@pytest.mark.parametrize(
    "point",
    cases.some(
        ["rollout.chunk@2", "step.before_update@2", "rollout.chunk@9", "step.before_update@7", "ckpt.after_rename@3"],
        {"rollout.chunk@9"},
    ),
)
def test_killed_and_resumed_to_the_same_bits(point: str, uninterrupted: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = copy.deepcopy(config)
    mine["run"]["root"] = str(tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_the_recipe_is_checked_with_them() -> None:
    done = vlmrl("check", RECIPE, "--no-data")
    assert done.returncode == 0, done.stderr
    assert "methods: ok" in done.stdout
    wrong = vlmrl("check", RECIPE, "--no-data", "stages.rft.bset=3", "stages.rl.reweight=[{name: entropy_weights, strenght: 1}]")
    assert wrong.returncode == 64
    assert "did you mean 'best'?" in wrong.stderr
    assert "did you mean 'strength'?" in wrong.stderr
    unknown = vlmrl("check", RECIPE, "--no-data", "stages.rft.kind=rejection_samplin")
    assert unknown.returncode == 64
    assert "did you mean 'rejection_sampling'?" in unknown.stderr


def test_a_kind_without_its_plugin_is_unknown() -> None:
    done = vlmrl("check", RECIPE, "--no-data", "plugins=[examples.entropy_weights, examples.anchor_loss]")
    assert done.returncode == 64
    assert "expected one of 'sft', 'preference', 'grpo', 'distill', 'teacher_sft', got str 'rejection_sampling'" in done.stderr


def test_the_methods_are_listed() -> None:
    done = vlmrl("list", "--json", "--recipe", RECIPE)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert [m["needs"] for m in listed["reweight"] if m["name"] == "entropy_weights"] == [["entropy_NT"]]
    assert [m["needs"] for m in listed["auxiliary_loss"] if m["name"] == "anchor"] == [["logp_ref_BT"]]


def test_entropy_weights_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    from vlmrl.algo.registries import reweight

    monkeypatch.setattr(reweight, "_entries", dict(reweight._entries))  # what the import registers is gone after the test
    from examples.entropy_weights import entropy_weights, update

    x = dataclasses.replace(inputs([(1.0, 0, True), (0.0, 0, True)]), entropy_NT=torch.tensor([[1.0, 3.0], [2.0, 99.0]]))
    x = dataclasses.replace(x, length_N=torch.tensor([2, 1]), memory={})
    adv = torch.ones(2, 2)
    assert torch.equal(entropy_weights(x, adv), adv), "nothing to compare with yet"
    sums = update({}, x)["sums"]
    assert sums.tolist() == [3.0, 6.0, 14.0]
    assert update({"sums": sums}, x)["sums"].tolist() == [6.0, 12.0, 28.0]
    weighted = entropy_weights(dataclasses.replace(x, memory={"sums": sums}), adv, strength=0.5)
    std = math.sqrt(14 / 3 - 4)
    assert weighted[0].tolist() == pytest.approx([1 - 0.5 / std, 1 + 0.5 / std])
    assert weighted[1, 0] == pytest.approx(1.0)
    assert weighted[1, 1] == 2.0, "never more than `most`"
