"""The example of a method from outside the package: its numbers, its recipe, and two training steps with it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.support import runs
from tests.support.builders import inputs
from tests.support.command import vlmrl
from vlmrl.run.tracking import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = "examples/my_method.yaml"


@pytest.fixture
def win_margin():
    from examples.my_method import win_margin

    return win_margin


def test_win_margin_by_hand(win_margin):
    # group 0: 1 beats two and loses to one of 3 others; 3 beats all; the two 0 tie. Group 1: one pair.
    rows = [(1.0, 0, True), (0.0, 0, True), (3.0, 0, True), (0.0, 0, True), (0.2, 1, True), (0.1, 1, True)]
    assert win_margin(inputs(rows)).tolist() == pytest.approx([1 / 3, -2 / 3, 1.0, -2 / 3, 1.0, -1.0])
    assert win_margin(inputs(rows), scale=3.0).tolist() == pytest.approx([1.0, -2.0, 3.0, -2.0, 3.0, -3.0])


def test_win_margin_sees_only_the_order(win_margin):
    rewards = [0.1, 0.7, 0.3, 0.3, 0.9]
    plain = win_margin(inputs([(r, 0, True) for r in rewards]))
    stretched = win_margin(inputs([(math.exp(9 * r), 0, True) for r in rewards]))
    assert torch.equal(plain, stretched)
    assert float(plain.sum()) == pytest.approx(0.0)


def test_win_margin_without_signal(win_margin):
    flat = [(0.1 + 0.2, 0, True), (0.3, 0, True), (5.0, 1, True), (7.0, 2, True), (0.0, 2, False)]
    assert win_margin(inputs(flat)).tolist() == [0.0] * 5
    assert win_margin(inputs(flat[:2]), tie=0.0).tolist() == [1.0, -1.0]
    assert win_margin(inputs([])).shape == (0,)


def test_win_margin_unjudged_rollouts_move_nobody(win_margin):
    rows = [(1.0, 0, True), (0.0, 0, False), (0.0, 0, True), (9.0, 0, False)]
    assert win_margin(inputs(rows)).tolist() == [1.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize("arguments", [{"scale": 0.0}, {"tie": -1.0}])
def test_win_margin_refuses_its_arguments(win_margin, arguments):
    with pytest.raises(ValueError, match="win_margin"):
        win_margin(inputs([(1.0, 0, True)]), **arguments)


def test_it_is_listed_with_its_recipe_and_with_its_module():
    for given in (("--recipe", RECIPE), ("--plugin", "examples.my_method")):
        done = vlmrl("list", "advantage", "--json", *given)
        assert done.returncode == 0, done.stderr
        method = next(m for m in json.loads(done.stdout)["advantage"] if m["name"] == "win_margin")
        assert [a["name"] for a in method["arguments"]] == ["scale", "tie"]


def test_its_recipe_is_checked_with_it():
    done = vlmrl("check", RECIPE, "--no-data")
    assert done.returncode == 0, done.stderr
    assert "methods: ok" in done.stdout
    wrong = vlmrl("check", RECIPE, "--no-data", "stages.rl.advantage={name: win_margin, scal: 2.0}")
    assert wrong.returncode == 64
    assert "did you mean 'scale'?" in wrong.stderr


def test_it_shares_the_pretrained_model_of_the_toy_recipe():
    """What is cached by its settings is made once for both recipes."""
    from vlmrl.config.load import load

    mine, toy = (load(ROOT / path, []).config for path in (RECIPE, "configs/recipes/toy_grounding.yaml"))
    assert (mine.toy, mine.media, mine.model) == (toy.toy, toy.media, toy.model)


def test_two_steps(tiny_files, tmp_path):
    config = runs.small_config(*tiny_files, tmp_path, steps=2, advantage={"name": "win_margin", "scale": 1.5})
    config["stages"] = config["stages"][1:]
    config["eval"] = {}
    config["plugins"] = ["tests.support.plugin_rewards", "examples.my_method"]
    assert runs.run(config) == 0
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
    assert len(lines) == 2
    assert all(math.isfinite(line["grad_norm"]) and line["grad_norm"] > 0 for line in lines)
