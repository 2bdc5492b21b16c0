"""Combinations of methods that cancel or contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from vlmrl.config import combinations
from vlmrl.config.load import load
from vlmrl.config.schema import Config, LoraSection
from vlmrl.errors import ConfigError
from vlmrl.methods import method_problems, registries
from vlmrl.registry import Registry

FOUND = registries()
CARE = {"reward_shaping": [{"name": "care_consistency", "reward": "exact"}]}


def contradictions(cfg: Config) -> list[str]:
    return combinations.contradictions(cfg, FOUND)


def doubts(cfg: Config) -> list[str]:
    return combinations.doubts(cfg, FOUND)


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
        ({"advantage": {"name": "g2rpo"}, "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "exact"}]}, "ranks only"),
        ({"advantage": {"name": "gs_gdpo"}, "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "exact"}]}, "ranks only"),
        ({"reward_shaping": [{"name": "noisy_verifier", "reward": "exact", "false_positive": 0.1}]}, "cancels"),
        ({"group_loss": {"name": "disco"}, "beta": 0.1}, "ignores beta"),
        ({"group_loss": {"name": "disco"}, "importance_correction": {"name": "tis"}}, "ignores importance_correction"),
        ({"group_loss": {"name": "disco"}, "constraints": [{"name": "entropy_band"}]}, "ignores entropy_band"),
        ({"group_loss": {"name": "disco"}, "filters": [{"name": "zero_variance"}]}, "zero_variance"),
        ({"constraints": [{"name": "entropy_band"}, {"name": "entropy_band", "low": 0.1}]}, "listed twice"),
        ({"constraints": [{"name": "lagrangian", "thresholds": {"grounding": 0.9}}]}, "no reward 'grounding'"),
        ({"constraints": [{"name": "lagrangian", "thresholds": {"format": 0.9}}]}, "counts twice"),
        (
            {"rollout": {"num_generations": 1}},
            "num_generations (1) must be at least 2 for advantage 'grpo', which compares rows of a group",
        ),
        (
            {"rollout": {"num_generations": 2, "strategy": {"name": "offpolicy_gt"}}},
            "num_generations (2) must be at least 3 for strategy 'offpolicy_gt', which replaces one of the rows",
        ),
        ({"group_loss": {"name": "disco"}, "auxiliary_losses": [{"name": "entropy_bonus"}]}, "ignores auxiliary_losses (entropy_bonus)"),
        ({"constraints": [{"name": "adaptive_kl", "target": 0.1}], **CARE}, "set beta to 0 and no adaptive_kl"),
        ({"reward_shaping": [{"name": "care_consistency", "reward": "exact"}], "beta": 0.1}, "takes the place"),
    ],
)
def test_refused(stage: dict[str, Any], part: str) -> None:
    found = contradictions(config(**stage))
    assert len(found) == 1
    assert part in found[0]
    assert found[0].startswith("stages.rl.")


@pytest.mark.parametrize(
    "stage",
    [
        {"advantage": {"name": "g2rpo"}},
        {"advantage": {"name": "spo"}, "rollout": {"num_generations": 1}},
        {"reward_shaping": [{"name": "noisy_verifier", "reward": "exact", "unparsed_false_negative": 0.2}]},
        {"advantage": {"name": "dr_grpo"}, "reward_shaping": [{"name": "noisy_verifier", "reward": "exact", "false_positive": 0.1}]},
        {"group_loss": {"name": "disco"}},
        {
            "constraints": [{"name": "lagrangian", "thresholds": {"format": 0.9}}],
            "rewards": [{"name": "exact"}, {"name": "format", "weight": 0.0}],
        },
        {"dynamic_sampling": {"max_batches": 3}, "filters": [{"name": "zero_variance"}]},
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
        ({"reward_shaping": [{"name": "length_envelope", "reward": "exact", "bands": {"qa": [8, 16, 32, 64]}}]}, "skipped thought for qa"),
        ({"advantage": {"name": "mc_grpo"}}, "pivot"),
        ({"advantage": {"name": "a_grae"}, "sampler": {"name": "vade"}}, "difficulty"),
        ({"rewards": [{"name": "exact", "weight": 0.5}, {"name": "format", "weight": 0.5}]}, "well-formed wrong"),
        ({"rewards": [{"name": "exact"}, {"name": "length", "low": 0, "high": 9, "maximum": 9}]}, "before its thoughts are right"),
        (
            {"advantage": {"name": "g2rpo"}, "rewards": [{"name": "exact"}, {"name": "right_without_thought", "weight": 0.1}]},
            "counts as much as right or wrong",
        ),
    ],
)
def test_pointed_out(stage: dict[str, Any], part: str) -> None:
    found = doubts(config(**stage))
    assert len(found) == 1
    assert part in found[0]
    assert contradictions(config(**stage)) == []


@pytest.mark.parametrize(
    "stage",
    [
        {"rewards": [{"name": "exact"}, {"name": "right_without_thought", "weight": 0.2}]},
        {"rewards": [{"name": "cosine_length", "maximum": 40}]},
        {"rewards": [{"name": "exact"}, {"name": "length", "low": 0, "high": 9, "maximum": 9}], "answer_format": "answer_only"},
        {"rewards": [{"name": "exact"}, {"name": "length", "low": 0, "high": 9, "maximum": 9}], "answer_format": "think"},
        {"advantage": {"name": "g2rpo"}},
    ],
)
def test_costs_on_length_that_lose_no_thoughts_are_not_pointed_out(stage: dict[str, Any]) -> None:
    assert doubts(config(**stage)) == []


def test_loading_a_recipe_refuses_them(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model: {path: m}\nstages:\n  - {name: rl, kind: grpo, source: {path: a}, steps: 1, rewards: [{name: exact}], "
        "dynamic_sampling: {max_batches: 2}}\n"
    )
    with pytest.raises(ConfigError, match="dynamic_sampling"):
        load(recipe, [])


def test_loading_a_recipe_asks_the_methods(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model: {path: m}\nstages:\n  - {name: rl, kind: grpo, source: {path: a}, steps: 1, rewards: [{name: exact}], "
        "group_loss: {name: disco}, beta: 0.1}\n"
    )
    with pytest.raises(ConfigError, match="ignores beta"):
        load(recipe, [], also=method_problems)


def test_an_averaged_reference_needs_one_of_its_own() -> None:
    cfg = config(**CARE)
    with_adapters = cfg.model_copy(update={"model": cfg.model.model_copy(update={"lora": LoraSection()})})
    assert contradictions(cfg) == []
    found = contradictions(with_adapters)
    assert len(found) == 1
    assert "with model.lora the reference has none of its own" in found[0]


def test_a_method_from_outside_brings_its_rules() -> None:
    """What a plug-in declares is checked as what the package declares."""
    advantages: Registry[Any] = Registry("advantage")

    def refuses(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
        if arguments.get("hard") and stage.beta == 0:
            yield "advantage 'mine' with hard needs beta above 0"

    @advantages("mine", refuses=refuses, min_generations=5, ranks_only=True)
    def mine(x: Any, *, hard: bool = False) -> Any:
        """Mine."""

    found = {**FOUND, "advantage": advantages}
    shaped = {"reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "exact"}], "rollout": {"num_generations": 4}}
    texts = combinations.contradictions(config(advantage={"name": "mine", "hard": True}, **shaped), found)
    assert [part for part in ("must be at least 5", "ranks only", "needs beta") if any(part in text for text in texts)] == [
        "must be at least 5",
        "ranks only",
        "needs beta",
    ]
