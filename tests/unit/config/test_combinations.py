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
        (
            {
                "advantage": {"name": "g2rpo"},
                "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "exact"}],
                "rewards": [{"name": "exact"}, {"name": "format", "weight": 0.0}],
            },
            "ranks only",
        ),
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
        ({"loss": {"name": "opmd"}, "advantage": {"name": "rloo"}, "updates_per_step": 2}, "seq_sum"),
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


# ---- combinations that run and are empty, or do the opposite of their name -------------------------------------------------

FORM_GIVEN = {"rollout": {"strategy": {"name": "offpolicy_gt", "fallback": "skip"}}}
TRACES = {"rollout": {"strategy": {"name": "demonstration"}}}
DISCO = {"group_loss": {"name": "disco"}}
LABELS = "takes the sign of an advantage for right or wrong"
DROPS = "where all of these fail"
NONLINEAR = {"name": "tempsamp_nonlinear", "reward": "exact"}

ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "disco + g2rpo": ({**DISCO, "advantage": {"name": "g2rpo"}}, LABELS),
    "disco + gs_gdpo": ({**DISCO, "advantage": {"name": "gs_gdpo"}}, LABELS),
    "disco + lagrangian": (
        {
            **DISCO,
            "constraints": [{"name": "lagrangian", "thresholds": {"format": 0.9}}],
            "rewards": [{"name": "exact"}, {"name": "format", "weight": 0.0}],
        },
        LABELS,
    ),
    "disco + tempo": ({**DISCO, "credit": {"name": "tempo"}}, LABELS),
    "disco + loss": ({**DISCO, "loss": {"name": "ppo_clip", "clip_high": 0.28}}, "loss 'ppo_clip' would do nothing"),
    "disco + reduce": ({**DISCO, "reduce": {"name": "fixed_length", "length": 8}}, "reduce 'fixed_length' would do nothing"),
    "ngrpo + rewards above its bound": ({"advantage": {"name": "ngrpo"}}, "the gold answer earns 1.1"),
    "pods keeps all": ({"filters": [{"name": "pods"}]}, "keeps 16 rows of a group and rollout.num_generations is 8"),
    "soft_overlong out of reach": (
        {"reward_shaping": [{"name": "soft_overlong", "reward": "exact"}], "rollout": {"max_new_tokens": 48}},
        "begins at 16384 tokens",
    ),
    "length_envelope without its tasks": (
        {
            "reward_shaping": [{"name": "length_envelope", "reward": "exact", "bands": {"ocr": [0, 4, 8, 9]}}],
            "source": {"path": "a", "task": "counting"},
        },
        "for the tasks ocr, and the rows are of counting",
    ),
    "trust of itself": (
        {"reward_shaping": [{"name": "trust", "reward": "exact", "outcome": "exact"}]},
        "outcome must be another reward",
    ),
}
"""Audited combination -> (stage, part of the error). Each ran without a word before."""


WARNED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gspo, one update": ({"loss": {"name": "gspo"}}, ["exactly the gradient of 'ppo_clip'"]),
    "cispo, one update": (
        {"loss": {"name": "cispo"}, "reduce": {"name": "token_mean"}, "answer_format": "think"},
        ["exactly the gradient of 'ppo_clip'"],
    ),
    "dispo, one update": (
        {"loss": {"name": "dispo"}, "reduce": {"name": "token_mean"}, "answer_format": "think"},
        ["exactly the gradient of 'ppo_clip'"],
    ),
    "sapo, one update": ({"loss": {"name": "sapo"}}, ["exactly the gradient of 'ppo_clip'"]),
    "opmd, one update": (
        {"loss": {"name": "opmd"}, "advantage": {"name": "rloo"}, "reduce": {"name": "seq_sum"}},
        ["exactly the gradient of 'ppo_clip'"],
    ),
    "reg_grpo_proposed, one update": ({"loss": {"name": "reg_grpo_proposed"}}, ["exactly the gradient of 'ppo_clip'"]),
    "luffy without traces": (
        {"loss": {"name": "luffy"}, "advantage": {"name": "rloo"}, "reduce": {"name": "fixed_length", "length": 8}},
        ["strategy 'plain' injects none"],
    ),
    "luffy, other reducer": ({"loss": {"name": "luffy"}, "advantage": {"name": "rloo"}, **TRACES}, ["made for reduce 'fixed_length'"]),
    "offpolicy_gt + zero_variance": ({**FORM_GIVEN, "filters": [{"name": "zero_variance"}]}, [DROPS]),
    "offpolicy_gt + difficulty_band": ({**FORM_GIVEN, "filters": [{"name": "difficulty_band"}]}, [DROPS]),
    "demonstration + zero_variance": ({**TRACES, "filters": [{"name": "zero_variance"}]}, [DROPS]),
    "demonstration + difficulty_band": ({**TRACES, "filters": [{"name": "difficulty_band"}]}, [DROPS]),
    "ngrpo + zero_variance": (
        {"advantage": {"name": "ngrpo", "r_max": 1.1}, "filters": [{"name": "zero_variance"}]},
        ["drops the groups of equal rewards"],
    ),
    "dr_grpo + seq_mean": ({"advantage": {"name": "dr_grpo"}}, ["length bias"]),
    "cispo + seq_mean": ({"loss": {"name": "cispo"}, "updates_per_step": 2}, ["made for reduce 'token_mean'"]),
    "dispo + seq_mean": ({"loss": {"name": "dispo"}, "updates_per_step": 2}, ["made for reduce 'token_mean'"]),
    "gspo + token_mean": (
        {"loss": {"name": "gspo"}, "reduce": {"name": "token_mean"}, "updates_per_step": 2, "answer_format": "think"},
        ["made for reduce 'seq_mean'"],
    ),
    "tempsamp_anchor without a given row": ({"advantage": {"name": "tempsamp_anchor"}}, ["strategy 'plain' injects none"]),
    "tempsamp_downscale without a given row": (
        {"reward_shaping": [{"name": "tempsamp_downscale", "reward": "exact"}]},
        ["strategy 'plain' injects none"],
    ),
    "three repairs": (
        {
            **FORM_GIVEN,
            "advantage": {"name": "tempsamp_anchor"},
            "reward_shaping": [NONLINEAR, {"name": "tempsamp_downscale", "reward": "exact"}],
        },
        ["are alternatives"],
    ),
    "asymre + zero_variance": (
        {"loss": {"name": "asymre"}, "advantage": {"name": "rloo"}, "filters": [{"name": "zero_variance"}]},
        ["drops the groups of equal rewards"],
    ),
    "adaptive_kl + beta": ({"beta": 0.0, "constraints": [{"name": "adaptive_kl", "target": 0.1}]}, ["beta (0) is not used"]),
    "llds, one update": ({"auxiliary_losses": [{"name": "llds", "weight": 0.1}]}, ["has no gradient while every ratio is 1"]),
    "a bound on the ratio's variance, one update": (
        {"constraints": [{"name": "ratio_variance_proposed"}]},
        ["has no gradient while every ratio is 1"],
    ),
    "imitation without traces": ({"auxiliary_losses": [{"name": "expo", "weight": 0.1}]}, ["strategy 'plain' injects none"]),
    "copo + zero_variance": (
        {"advantage": {"name": "copo"}, "filters": [{"name": "zero_variance"}]},
        ["drops the groups of equal rewards"],
    ),
    "urpa + a deviation": (
        {"rewards": [{"name": "urpa"}]},
        ["reward 'urpa' multiplies all answers of a group by one number, which advantage 'grpo' divides out; take"],
    ),
    "urpa + a deviation, several columns": (
        {"rewards": [{"name": "urpa"}, {"name": "format", "weight": 0.1}]},
        ["divides out but for the balance of the columns"],
    ),
    "gtpo_entropy above ln 2": (
        {"reweight": [{"name": "gtpo_entropy", "bound": 0.9}], "advantage": {"name": "rloo"}},
        ["above a mean entropy of 0.9 nats, and its source above ln 2"],
    ),
    "capo_proposed, a rate above its authors'": (
        {"reweight": [{"name": "capo_proposed"}], "optim": {"lr": 1e-4}},
        ["0.0001 * 2048 = 0.2 or more, and that of its authors is 0.054: tokens that are not nearly certain are masked"],
    ),
    "offpolicy_gt, thoughts and no word on a fallback": (
        {"rollout": {"strategy": {"name": "offpolicy_gt"}}, "answer_format": "think"},
        ["none at all while the policy does not write that form; say fallback: answer_only"],
    ),
    "offpolicy_gt, thoughts where none are asked for": (
        {
            "rollout": {"strategy": {"name": "offpolicy_gt", "gt_cot": "bare"}},
            "answer_format": "answer_only",
            "rewards": [{"name": "exact"}],
        },
        ["every group gets the answer alone, and gt_cot would do nothing; drop it"],
    ),
    "nonlinear shaping before ranks of a sum": (
        {"advantage": {"name": "g2rpo"}, "reward_shaping": [NONLINEAR]},
        ["only the balance with the other"],
    ),
}
"""Audited combination -> (stage, parts of its warnings)."""


@pytest.mark.parametrize("name", ERRORS)
def test_an_empty_combination_is_an_error(name: str) -> None:
    stage, part = ERRORS[name]
    (text,) = contradictions(config(**stage))
    assert text.startswith("stages.rl.")
    assert part in text


@pytest.mark.parametrize("name", WARNED)
def test_an_odd_combination_is_pointed_out(name: str) -> None:
    stage, parts = WARNED[name]
    assert contradictions(config(**stage)) == []
    found = doubts(config(**stage))
    assert len(found) == len(parts), found
    assert all(part in text for part, text in zip(parts, found, strict=True))


@pytest.mark.parametrize(
    "stage",
    [
        {**DISCO, "advantage": {"name": "g2rpo", "stages": "group"}},
        {**DISCO, "advantage": {"name": "rloo"}},
        {"advantage": {"name": "ngrpo", "r_max": 1.1}},
        {"advantage": {"name": "ngrpo"}, "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "exact"}]},
        {"filters": [{"name": "pods", "keep": 4}]},
        {"filters": [{"name": "pods"}], "budget": {"name": "knapsack"}},
        {"reward_shaping": [{"name": "soft_overlong", "reward": "exact", "maximum": 48, "buffer": 8}], "rollout": {"max_new_tokens": 48}},
        {"loss": {"name": "gspo"}, "updates_per_step": 2},
        {"loss": {"name": "sapo"}, "rollout": {"strategy": {"name": "replay"}}},
        {"loss": {"name": "opmd", "form": "scaled"}, "advantage": {"name": "rloo"}, "reduce": {"name": "seq_sum"}},
        {**FORM_GIVEN, "advantage": {"name": "tempsamp_anchor"}},
        {**TRACES, "loss": {"name": "luffy"}, "advantage": {"name": "rloo"}, "reduce": {"name": "fixed_length", "length": 8}},
        {"constraints": [{"name": "adaptive_kl", "target": 0.1}]},
        {"rewards": [{"name": "urpa"}], "advantage": {"name": "rloo"}},
        {"rewards": [{"name": "urpa"}], "advantage": {"name": "batch_std"}},
        {"rewards": [{"name": "urpa", "gamma": 0.0}]},
        {"reweight": [{"name": "gtpo_entropy"}], "advantage": {"name": "rloo"}},
        {"reweight": [{"name": "capo_proposed"}], "optim": {"lr": 1e-6}},
        {"reweight": [{"name": "capo_proposed", "step": 0.05}], "optim": {"lr": 1e-4}},
        {"rollout": {"strategy": {"name": "offpolicy_gt", "fallback": "skip"}}},
        {"rollout": {"strategy": {"name": "offpolicy_gt"}}, "answer_format": "answer_only", "rewards": [{"name": "exact"}]},
    ],
)
def test_neighbours_of_audited_combinations_are_silent(stage: dict[str, Any]) -> None:
    assert contradictions(config(**stage)) == []
    assert doubts(config(**stage)) == []


def test_rows_of_no_task_of_a_shaping_are_found_with_the_data() -> None:
    shaping = {"name": "length_envelope", "reward": "exact", "bands": {"ocr": [0, 4, 8, 9]}}
    (stage,) = config(reward_shaping=[shaping]).stages
    (text,) = combinations.idle_for_rows(stage, FOUND, {"counting"})
    assert text.startswith("stages.rl.reward_shaping.0: reward_shaping 'length_envelope' is for the tasks ocr")
    assert combinations.idle_for_rows(stage, FOUND, {"counting", "ocr"}) == []


def test_what_a_reward_from_outside_pays_is_not_known() -> None:
    def register(**extra: Any) -> Mapping[str, Registry[Any]]:
        rewards: Registry[Any] = Registry("reward")

        @rewards("exact", **extra)
        def mine(group: Any, ctx: Any) -> Any:
            """Mine."""

        return {**FOUND, "reward": rewards}

    cfg = config(advantage={"name": "ngrpo"}, rewards=[{"name": "exact", "weight": 5.0}])
    assert combinations.contradictions(cfg, register()) == []
    assert len(combinations.contradictions(cfg, register(best=1.0))) == 1
