"""Combinations of methods that cancel or contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vlmrl.config.combinations import contradictions, doubts
from vlmrl.config.load import load
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError


def config(**stage: Any) -> Config:
    rl = {
        "kind": "grpo",
        "name": "rl",
        "source": {"path": "a"},
        "steps": 1,
        "rewards": [{"name": "exact"}, {"name": "format", "weight": 0.1}],
    }
    return Config.model_validate({"model": {"path": "m"}, "stages": [rl | stage]})


def test_the_defaults_have_neither() -> None:
    assert contradictions(config()) == []
    assert doubts(config()) == []


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ({"advantage": {"name": "g2rpo"}, "shape": [{"name": "tempsamp_nonlinear", "column": "exact"}]}, "ranks only"),
        ({"advantage": {"name": "gs_gdpo"}, "shape": [{"name": "tempsamp_nonlinear", "column": "exact"}]}, "ranks only"),
        ({"shape": [{"name": "noisy_verifier", "column": "exact", "false_positive": 0.1}]}, "cancels"),
        ({"group_loss": {"name": "disco"}, "beta": 0.1}, "ignores beta"),
        ({"group_loss": {"name": "disco"}, "mismatch": {"name": "tis"}}, "ignores mismatch"),
        ({"group_loss": {"name": "disco"}, "constraints": [{"name": "entropy_band"}]}, "ignores entropy_band"),
        ({"group_loss": {"name": "disco"}, "select": [{"name": "zero_variance"}]}, "zero_variance"),
        ({"constraints": [{"name": "entropy_band"}, {"name": "entropy_band", "low": 0.1}]}, "listed twice"),
        ({"constraints": [{"name": "lagrangian", "thresholds": {"grounding": 0.9}}]}, "no reward 'grounding'"),
        ({"constraints": [{"name": "lagrangian", "thresholds": {"format": 0.9}}]}, "counts twice"),
        ({"refill": 3}, "refill"),
        ({"shape": [{"name": "care_consistency", "column": "exact"}], "beta": 0.1}, "takes the place"),
    ],
)
def test_refused(stage: dict[str, Any], part: str) -> None:
    found = contradictions(config(**stage))
    assert len(found) == 1
    assert part in found[0]
    assert found[0].startswith("stages[0] (rl): ")


@pytest.mark.parametrize(
    "stage",
    [
        {"advantage": {"name": "g2rpo"}},
        {"shape": [{"name": "noisy_verifier", "column": "exact", "unparsed_false_negative": 0.2}]},
        {"advantage": {"name": "dr_grpo"}, "shape": [{"name": "noisy_verifier", "column": "exact", "false_positive": 0.1}]},
        {"group_loss": {"name": "disco"}},
        {
            "constraints": [{"name": "lagrangian", "thresholds": {"format": 0.9}}],
            "rewards": [{"name": "exact"}, {"name": "format", "weight": 0.0}],
        },
        {"refill": 3, "select": [{"name": "zero_variance"}]},
    ],
)
def test_neighbours_of_refused_ones_are_fine(stage: dict[str, Any]) -> None:
    assert contradictions(config(**stage)) == []


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ({"loss": {"name": "opmd"}, "advantage": {"name": "rloo"}}, "seq_sum"),
        ({"loss": {"name": "asymre"}}, "not divided"),
        ({"reduce": {"name": "token_mean"}}, "token_mean"),
        ({"shape": [{"name": "length_envelope", "column": "exact", "bands": {"qa": [8, 16, 32, 64]}}]}, "skipped thought for qa"),
        ({"advantage": {"name": "mc_grpo"}}, "pivot"),
        ({"advantage": {"name": "a_grae"}, "sampler": {"name": "vade"}}, "difficulty"),
        ({"rewards": [{"name": "exact", "weight": 0.5}, {"name": "format", "weight": 0.5}]}, "well-formed wrong"),
    ],
)
def test_pointed_out(stage: dict[str, Any], part: str) -> None:
    found = doubts(config(**stage))
    assert len(found) == 1
    assert part in found[0]
    assert contradictions(config(**stage)) == []


def test_loading_a_recipe_refuses_them(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model: {path: m}\nstages:\n  - {name: rl, kind: grpo, source: {path: a}, steps: 1, rewards: [{name: exact}], refill: 2}\n"
    )
    with pytest.raises(ConfigError, match="refill"):
        load(recipe, [])
