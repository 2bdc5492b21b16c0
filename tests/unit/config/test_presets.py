"""Our presets: each against the settings of its paper or code as literal numbers, and against the recipes of the same papers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vlmrl.config.layers import presets
from vlmrl.config.load import load, load_mapping
from vlmrl.config.methods import SLOTS, of_stage
from vlmrl.config.schema import SECTIONS, RolloutStage, StageBase
from vlmrl.methods import method_doubts, method_problems, registries

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "configs" / "algorithms"
NOT_OF_AN_ALGORITHM = {
    "name",
    "kind",
    "source",
    "steps",
    "until",
    "optim",
    "freeze",
    "forward",
    "max_tokens_per_microbatch",
    "rewards",
    "batch",
}
"""Keys of a stage for a recipe alone: model, data, lengths, steps, and what a run is made with."""

PPO = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}
HIGHER = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
K3 = {"name": "k3"}


def method(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, **arguments}


def grpo(advantage: dict[str, Any], loss: dict[str, Any], reduce: str, beta: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"grpo": {"advantage": advantage, "loss": loss, "reduce": {"name": reduce}, "beta": beta, **more}}


DYNAMIC = {"filters": [method("zero_variance")], "dynamic_sampling": {"max_batches": 10}}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    # arXiv:2402.03300: eq. 3, eq. 4, "the KL coefficient is 0.04"; epsilon is PPO's
    "grpo": grpo(method("grpo"), PPO, "seq_mean", 0.04, kl=K3),
    # arXiv:2503.14476, section 4.1: 0.2 and 0.28; verl's script: max_num_gen_batches=10, filter_groups_metric=acc, kl_loss_coef=0.0
    "dapo": grpo(method("grpo"), HIGHER, "token_mean", **DYNAMIC),
    # arXiv:2503.20783: neither deviation nor own length; the authors' script: --beta 0
    "dr_grpo": grpo(method("dr_grpo"), PPO, "fixed_length"),
    # arXiv:2507.18071v2, section 5.1: 3e-4 and 4e-4; TRL's paper index: beta=0.0
    "gspo": grpo(method("grpo"), method("gspo", clip_low=3e-4, clip_high=4e-4), "seq_mean"),
    # TRL's paper index of arXiv:2602.05261: epsilon=2e-3, epsilon_high=2.5e-3; loss_type luspo: times the answer's length
    "luspo": grpo(method("grpo"), method("gspo", clip_low=2e-3, clip_high=2.5e-3), "seq_sum"),
    # arXiv:2506.13585: no lower bound, no KL, mean over tokens; TRL's paper index of ScaleRL: epsilon_high=5.0
    "cispo": grpo(method("grpo"), method("cispo", ratio_min=0.0, ratio_max=5.0), "token_mean"),
    # arXiv:2511.20347; TRL's paper index: sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, scale_rewards="group"
    "sapo": grpo(method("grpo"), method("sapo", tau_positive=1.0, tau_negative=1.05), "seq_mean"),
    # arXiv:2402.14740: leave-one-out REINFORCE on whole answers
    "rloo": grpo(method("rloo"), PPO, "seq_sum", updates_per_step=1),
    # OpenRLHF's train_reinforce_baseline_hybrid_engine.sh: --init_kl_coef 1e-5 --use_kl_loss --kl_estimator k2; PolicyLoss(0.2, 0.2, True)
    "reinforce_pp": grpo(method("reinforce_pp_baseline"), PPO, "token_mean", 1e-5, kl=method("k2")),
    # TRL's paper index of arXiv:2508.08221: scale_rewards="batch", loss_type="dapo", beta=0.0
    "lite_ppo": grpo(method("batch_std"), PPO, "token_mean"),
    # verl's page of arXiv:2505.23585: opo, mini-batch = batch, use_kl_loss False
    "opo": grpo(method("opo"), PPO, "token_mean", updates_per_step=1),
    # NVlabs/GDPO, verl-GDPO: masked_whiten over response tokens, use_kl_loss=False, verl's 0.2 and token mean
    "gdpo": grpo(method("gdpo", post="token"), PPO, "token_mean"),
    # NGRPO's script: max_reward=1.0, add_max_reward_num=1, clip_ratio_low=0.16, clip_ratio_high=0.24, all_correct; entropy_coeff: 0.001
    "ngrpo": grpo(
        method("ngrpo", r_max=1.0, virtual=1),
        method("ppo_clip", clip_low=0.16, clip_high=0.24),
        "token_mean",
        filters=[method("difficulty_band", low=0.0, high=0.999)],
        auxiliary_losses=[method("entropy_bonus", weight=0.001)],
    ),
    # MC-GRPO's code: MAD + 1e-3, the median is left out, --loss_type grpo, beta: 0.04
    "mc_grpo": grpo(method("mc_grpo", epsilon=1e-3), PPO, "seq_mean", 0.04, kl=K3, filters=[method("mc_grpo_pivot")]),
    # arXiv:2506.01939, section 5.2: DAPO with a fifth of the tokens
    "high_entropy": grpo(method("grpo"), HIGHER, "token_mean", reweight=[method("high_entropy", share=0.2)], **DYNAMIC),
    # DisCO's run_disco_logL_7b_8k.sh: loss_type=disco_logL tau=10 beta=1e3 delta=1e-4 ppo_kl_type=kl use_kl_loss=False
    "disco": {
        "grpo": {
            "advantage": method("grpo"),
            "group_loss": method("disco", score="logL", tau=10.0, hard_negatives=True, divergence="kl", beta=1000.0, delta=1e-4),
            "beta": 0.0,
        }
    },
    # LUFFY's train.sh: grpo_use_std=False, p_div_p_0.1, loss_remove_token_mean, loss_remove_clip, entropy_coeff=0.001, use_kl_loss=False
    "luffy": grpo(
        method("dr_grpo"),
        method("luffy", gamma=0.1),
        "fixed_length",
        rollout={"strategy": method("demonstration")},
        auxiliary_losses=[method("entropy_bonus", weight=0.001)],
    ),
    # verl-agent's gigpo_trainer/run_alfworld.sh: gamma=0.95 step_advantage_w=1.0 mode=mean_std_norm kl_loss_coef=0.01 low_var_kl
    "gigpo": grpo(method("gigpo", gamma=0.95, w=1.0, normalise="deviation", mean_over="turns"), PPO, "token_mean", 0.01, kl=K3),
    # the released configuration of arXiv:2604.08539: filter 0.01 to 0.99, 20 tries, clip 0.2 / 0.3, dual clip 3, disable_kl
    "g2rpo": grpo(
        method("g2rpo", stages="group+task"),
        method("ppo_clip", clip_low=0.2, clip_high=0.3, dual_clip=3.0),
        "token_mean",
        filters=[method("difficulty_band", reward="accuracy", low=0.01, high=0.99, strict=True)],
        dynamic_sampling={"max_batches": 20},
    ),
    # arXiv:2509.18056, eq. 2 and 4: 0.8, 0.01, 1
    "tempsamp": grpo(
        method("grpo"),
        PPO,
        "seq_mean",
        rollout={"strategy": method("offpolicy_gt")},
        reward_shaping=[method("tempsamp_nonlinear", reward="temporal_iou", tau=0.8, alpha_hi=0.01, alpha_lo=1.0)],
    ),
    # arXiv:2505.16854: half of the thoughts, then GRPO with 0.04
    "ton": {
        "sft": {"answer_format": "think", "thought_dropout": 0.5, "dropout_per_epoch": False},
        "grpo": {**grpo(method("grpo"), PPO, "seq_mean", 0.04, kl=K3)["grpo"], "answer_format": "think"},
    },
    # arXiv:2604.08476: 0.95, 0.95 and 0.65; multipliers from 1, steps of 0.05, at most 5, from 8 rows on; 0.28; 0.001
    "fgrpo": grpo(
        method("grpo"),
        HIGHER,
        "seq_mean",
        0.001,
        kl=K3,
        constraints=[
            method(
                "lagrangian",
                thresholds={"consistency": 0.95, "semantic_grounding": 0.95, "spatial_grounding": 0.65},
                start=1.0,
                eta=0.05,
                high=5.0,
                min_applicable=8,
            )
        ],
    ),
    # arXiv:2305.18290, appendix B
    "dpo": {"preference": {"group_loss": method("dpo", beta=0.1)}},
}

JUDGE = {"correct_by": "accuracy", "endpoint": {"url": "http://127.0.0.1:8000/v1", "model": "judge"}, "weight": 0.0}
BESIDE: dict[str, dict[str, Any]] = {
    "dr_grpo": {"reduce": {"length": 64}},
    "luffy": {"reduce": {"length": 64}},
    "mc_grpo": {"rollout": {"num_generations": 9}},
    "tempsamp": {"rewards": [{"name": "temporal_iou"}]},
    "ngrpo": {"rewards": [{"name": "accuracy"}]},
    "fgrpo": {
        "rewards": [
            {"name": "accuracy"},
            {"name": "consistency", **JUDGE},
            {"name": "semantic_grounding", **JUDGE},
            {"name": "spatial_grounding", "weight": 0.0},
        ]
    },
}
"""What a recipe must give beside a preset; the preset says so."""
EVERY = [(preset.name, kind) for preset in presets() for kind in preset.sections]


def recipe(kind: str, **stage: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"name": "s", "kind": kind, "source": {"path": "a"}, "steps": 1}
    own |= {"rewards": [{"name": "accuracy"}, {"name": "format", "weight": 0.1}]} if kind == "grpo" else {}
    own |= {"group_loss": {"name": "dpo"}} if kind == "preference" and "algorithm" not in stage else {}
    return {"model": {"path": "m"}, "stages": [{**own, **stage}]}


def slots(stage: StageBase) -> dict[str, Any]:
    """All of a stage that a preset may set, as plain values."""
    out = {key: value for key, value in stage.model_dump(mode="json").items() if key not in NOT_OF_AN_ALGORITHM}
    return {**out, "rollout": {"strategy": out["rollout"]["strategy"]}} if "rollout" in out else out


def test_every_preset_is_compared_with_its_source():
    assert {preset.name for preset in presets()} == set(SETTINGS)


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_a_preset_expands_to_the_settings_of_its_source(name, kind):
    (before,) = load_mapping(recipe(kind), []).config.stages
    (after,) = load_mapping(recipe(kind, algorithm=name), []).config.stages
    assert slots(after) == {**slots(before), **SETTINGS[name][kind]}


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_a_preset_is_a_stage_that_can_run(name, kind):
    out = load_mapping(recipe(kind, algorithm=name, **BESIDE.get(name, {})), [], also=method_problems)
    assert not [doubt for doubt in method_doubts(out.config) if "is made for" in doubt or "at most" in doubt]


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_a_preset_holds_what_belongs_to_an_algorithm(name, kind):
    (preset,) = [one for one in presets() if one.name == name]
    section = preset.sections[kind]
    assert not set(section) & NOT_OF_AN_ALGORITHM
    assert set(section) <= set(SECTIONS[kind].model_fields)
    assert section.get("rollout", {"strategy": {}}).keys() == {"strategy"}
    assert preset.facts["title"]
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", preset.facts["paper"])
    assert "_proposed" not in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_setting_has_its_source(path):
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header.startswith("# After each setting its source: ")
    kinds = next(i for i, line in enumerate(lines) if line.removesuffix(":") in SECTIONS)
    assert not [line for line in lines[kinds:] if re.match(r"  [a-z]", line) and " # " not in line]


# ---- recipes of the same papers -------------------------------------------------------------------------------------------

RECIPES = [
    ("g2rpo", "g2rpo", ("rl",)),
    ("fgrpo", "fgrpo", ("rl",)),
    ("tempsamp", "tempsamp", ("answer",)),
    ("ton", "ton", ("sft", "rl")),
    ("ton_maths", "ton", ("sft", "rl")),
    ("ton_gui", "ton", ("sft", "rl")),
    ("dpo", "dpo", ("pairs",)),
]


def effective(stage: StageBase) -> dict[str, Any]:
    """The slots of a stage with every argument that a method takes, given or by default."""
    found, out = registries(), slots(stage)
    for field in SLOTS:
        out.pop(field, None)
    if isinstance(stage, RolloutStage):
        out.pop("rollout")
    for where, slot, one in of_stage(stage):
        defaults = {p.name: p.default for p in found[slot].get(one.name).parameters.values()}
        out[where] = (one.name, {**defaults, **one.arguments})
    return out


@pytest.mark.parametrize(("name", "preset", "stages"), RECIPES)
def test_a_recipe_of_the_paper_says_what_the_preset_says(name, preset, stages, tmp_path):
    """A recipe with sources beside every line spells its slots out; with the preset in their place it is the same."""
    path = ROOT / "configs" / "recipes" / f"{name}.yaml"
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    sections = next(one for one in presets() if one.name == preset).sections
    for stage in plain["stages"]:
        if stage["name"] in stages:
            keys = set(sections[stage["kind"]])
            kept = {key: value for key, value in stage.items() if key not in keys - {"rollout"}}
            kept.get("rollout", {}).pop("strategy", None)
            stage.clear()
            stage |= {**kept, "algorithm": preset}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(plain))
    before, after = load(path, []).config.stages, load(tmp_path / "r.yaml", []).config.stages
    assert [effective(stage) for stage in after] == [effective(stage) for stage in before]
