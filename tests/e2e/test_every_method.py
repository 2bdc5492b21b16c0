"""Every method of the core and the zoo changes the gradient, through the production step on answers that are written down
(`tests.support.written`): it is held against the same stage without it. And every method says so in the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.written import Bench, Steps, bench, distance
from vlmrl.methods import registries

SLOTS = registries()
SAME = 1e-5
"""Relative distance of gradients that rounding in float32 makes."""


@dataclass(frozen=True)
class Case:
    """A method in a stage."""

    stage: dict[str, Any]
    """What names it."""
    beside: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it needs of the stage; the stage that it is held against has this too."""
    steps: int = 1
    quiet: bool = False
    """Whether nothing of it is logged under its name: of reducers, divergences, samplers and rewards the effect is theirs by definition."""


def advantage(name: str, beside: dict[str, Any] | None = None, steps: int = 1, **arguments: Any) -> Case:
    return Case({"advantage": {"name": name, **arguments}}, beside or {}, steps)


def loss(name: str, beside: dict[str, Any] | None = None, **arguments: Any) -> Case:
    """With two updates, of which the second has ratios that are not 1."""
    return Case({"loss": {"name": name, **arguments}}, {"updates_per_step": 2} | (beside or {}))


def group_loss(name: str, **arguments: Any) -> Case:
    return Case({"group_loss": {"name": name, **arguments}}, {"updates_per_step": 2})


def listed(field_name: str, name: str, beside: dict[str, Any] | None = None, steps: int = 1, **arguments: Any) -> Case:
    """A method of a field that holds several."""
    return Case({field_name: [{"name": name, **arguments}]}, beside or {}, steps)


def shaping(name: str, beside: dict[str, Any] | None = None, steps: int = 1, **arguments: Any) -> Case:
    return listed("reward_shaping", name, beside, steps, **{"reward": "temporal_iou", **arguments})


def strategy(name: str, beside: dict[str, Any] | None = None, steps: int = 1, **arguments: Any) -> Case:
    return Case({"rollout": {"strategy": {"name": name, **arguments}}}, beside or {}, steps)


def reward(name: str, beside: dict[str, Any] | None = None, **arguments: Any) -> Case:
    """A column beside the two that every stage has."""
    return Case({"rewards": [*REWARDS, {"name": name, "isolate": False, **arguments}]}, beside or {}, quiet=True)


def quiet(beside: dict[str, Any] | None = None, steps: int = 1, **stage: Any) -> Case:
    return Case(stage, beside or {}, steps, quiet=True)


REWARDS = [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}]
TRUTH = {"rollout": {"strategy": {"name": "offpolicy_gt", "fallback": "answer_only"}}}
EXACT = {"rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.0}]}
"""The columns of the form weighs nothing: gates and use are read from it."""
SUM = {"reduce": {"name": "token_mean"}}
CASES: dict[str, dict[str, Case]] = {
    "advantage": {
        **{name: advantage(name) for name in ("batch_std", "dr_grpo", "g2rpo", "gdpo", "mc_grpo", "reinforce_pp_baseline", "rloo")},
        **{name: advantage(name, SUM) for name in ("opo", "canon_length", "canon_entropy")},
        **{name: advantage(name) for name in ("a_grae", "copo", "gs_gdpo", "hapo", "pshw", "riskpo", "rltf_sd", "seed_grpo", "unlikely")},
        **{name: advantage(name) for name in ("sgrpo_proposed", "spo", "polychromic_proposed", "trajectory", "trajectory_loop")},
        **{name: advantage(name) for name in ("gigpo", "hgpo", "igpo", "turn_return")},
        "ngrpo": advantage("ngrpo", r_max=1.1),
        "tempsamp_anchor": advantage("tempsamp_anchor", TRUTH),
        "ema_grpo": advantage("ema_grpo", steps=2),
        "grpo_by_question": advantage("grpo_by_question", {"rollout": {"strategy": {"name": "paraphrases"}}}),
    },
    "reweight": {
        **{name: listed("reweight", name) for name in ("high_entropy", "ace", "adora", "ap_grpo", "d3s_tokens", "dcpo", "fixed_negative")},
        **{name: listed("reweight", name) for name in ("gtpo", "gtpo_entropy", "hapo_low_entropy", "xrpo_sharpening", "srpo_proposed")},
        **{name: listed("reweight", name) for name in ("vppo", "vppo_tokens", "pgpo")},
        "trajectory_mean": listed("reweight", "trajectory_mean", SUM),
        "capo_proposed": listed("reweight", "capo_proposed", step=0.005),
        "dr_irl_proposed": listed("reweight", "dr_irl_proposed", similarity="format", gap="format"),
        "prompt_gdro_proposed": listed("reweight", "prompt_gdro_proposed", steps=3),
        "rank_grpo": listed("reweight", "rank_grpo", items=2),
        "spo_chain_proposed": listed(
            "reweight",
            "spo_chain_proposed",
            {"rollout": {"strategy": {"name": "spo_chain_proposed", "pieces": 2, "continuations": 1}}},
            pieces=2,
        ),
    },
    "credit": {"tempo": Case({"credit": {"name": "tempo"}})},
    "policy_loss": {
        **{name: loss(name) for name in ("cispo", "gspo", "sapo", "asymre", "dispo", "gbpo", "mdpo_proposed", "p3o_proposed", "r2vpo")},
        **{name: loss(name) for name in ("rec", "reg_grpo_proposed", "rank_grpo")},
        "opmd": loss("opmd"),
        "luffy": loss("luffy", {"rollout": {"strategy": {"name": "demonstration"}}}),
    },
    "group_loss": {
        **{name: group_loss(name) for name in ("dpo", "mpo_proposed", "c3po_proposed", "disco", "dno_proposed", "drpo", "real")},
        "trpa_proposed": group_loss("trpa_proposed"),
    },
    "auxiliary_loss": {
        "entropy_bonus": listed("auxiliary_losses", "entropy_bonus", weight=0.01),
        "expo": listed("auxiliary_losses", "expo", TRUTH, weight=0.1),
        "papo": listed("auxiliary_losses", "papo", weight=1.0),
    },
    "constraint": {
        "lagrangian": listed("constraints", "lagrangian", EXACT, thresholds={"format": 0.9}, min_applicable=1),
        "entropy_band": listed("constraints", "entropy_band"),
        "targeted_entropy": listed("constraints", "targeted_entropy"),
        "adaptive_kl": quiet({"beta": 0.0}, steps=2, constraints=[{"name": "adaptive_kl", "target": 0.01, "start": 0.5}]),
        "ratio_variance_proposed": listed(
            "constraints", "ratio_variance_proposed", {"updates_per_step": 2, "loss": {"name": "r2vpo", "weight": 0.0}}, 2
        ),
    },
    "importance_correction": {name: Case({"importance_correction": {"name": name}}) for name in ("tis", "sequence", "mis", "icepop")},
    "kl_estimator": {
        **{name: quiet({"beta": 0.5}, steps=2, kl={"name": name}) for name in ("k1", "k2")},
        "unbiased": quiet({"beta": 0.5, "updates_per_step": 2}, steps=2, kl={"name": "unbiased"}),
    },
    "reducer": {
        "token_mean": quiet(reduce={"name": "token_mean"}),
        "seq_sum": quiet(reduce={"name": "seq_sum"}),
        "fixed_length": quiet(reduce={"name": "fixed_length", "length": 64}),
    },
    "filter": {
        **{name: listed("filters", name) for name in ("mc_grpo_pivot", "zero_variance", "d3s", "selective_sample_buffer")},
        "difficulty_band": listed("filters", "difficulty_band", low=0.05, high=0.9),
        "overlong": listed("filters", "overlong", max_share=0.0),
        "pods": listed("filters", "pods", keep=2),
        "verifier_pairs_proposed": listed("filters", "verifier_pairs_proposed", reward="temporal_iou", checks={"format": 1.0}),
    },
    "reward_shaping": {
        "product": shaping("product", EXACT, factor="format"),
        "length_envelope": shaping("length_envelope", bands={"temporal_grounding": [1, 2, 8, 10]}),
        "soft_overlong": shaping("soft_overlong", maximum=40, buffer=30),
        "tempsamp_nonlinear": shaping("tempsamp_nonlinear"),
        "tempsamp_downscale": shaping("tempsamp_downscale", TRUTH),
        "verifier_pairs_proposed": shaping("verifier_pairs_proposed", checks={"format": 1.0}),
        "budget_schedule": shaping("budget_schedule", start=40),
        "care_consistency": shaping("care_consistency", every=1, decay=0.5),
        "e_grpo": shaping("e_grpo", EXACT, matched="format"),
        "gcpo": shaping("gcpo", EXACT, used="format"),
        "grpo_lambda": shaping("grpo_lambda", correct_from=0.5),
        "noisy_verifier": shaping("noisy_verifier", {"advantage": {"name": "dr_grpo"}}, false_positive=0.1),
        "p_grpo_gate": shaping("p_grpo_gate", reward="format", outcome="temporal_iou"),
        "progress_proposed": shaping("progress_proposed", potential="format", steps=3),
        "s_grpo_proposed": shaping(
            "s_grpo_proposed",
            {"rollout": {"strategy": {"name": "s_grpo_proposed", "exits": 2}}, "advantage": {"name": "dr_grpo"}},
        ),
        "serr": shaping("serr", peak=0.01),
        "think_and_direct_proposed": shaping(
            "think_and_direct_proposed", {"rollout": {"strategy": {"name": "think_and_direct_proposed"}}}, budget=5
        ),
        "hill_proposed": shaping(
            "hill_proposed",
            {"rollout": {"strategy": {"name": "hill_proposed", "hints": 2, "answers": 2}}, "advantage": {"name": "grpo_by_question"}},
        ),
        "information_consistency_proposed": shaping("information_consistency_proposed", {"rollout": {"strategy": {"name": "paraphrases"}}}),
        "otc": shaping("otc", EXACT, calls="format", steps=3),
        "trust": shaping("trust", reward="format", outcome="temporal_iou"),
    },
    "sampler": {
        "curriculum_gui": quiet(steps=3, sampler={"name": "curriculum_gui"}),
        "cascade": quiet(sampler={"name": "cascade", "order": ["0", "1", "2"], "by": "level"}),
        "mixture": quiet(sampler={"name": "mixture", "by": "level"}),
        "prioritized": quiet(steps=3, sampler={"name": "prioritized"}),
        "vade": quiet(steps=3, sampler={"name": "vade"}),
        "vas": quiet(steps=3, sampler={"name": "vas"}),
    },
    "budget": {name: Case({"budget": {"name": name, "low": 2, "high": 10}}, steps=3) for name in ("knapsack", "sqrt_law")},
    "strategy": {
        "offpolicy_gt": strategy("offpolicy_gt"),
        "demonstration": strategy("demonstration"),
        "sage": strategy("sage"),
        "scaf_grpo": strategy("scaf_grpo", warmup_steps=0),
        "guide": strategy("guide"),
        "replay": strategy("replay", steps=3),
        "s_grpo_proposed": strategy("s_grpo_proposed", {"advantage": {"name": "dr_grpo"}}, exits=2),
        "rltf_sd": strategy("rltf_sd", {"advantage": {"name": "rltf_sd"}}),
        "spo_chain_proposed": strategy("spo_chain_proposed", pieces=2, continuations=1),
        "rest_grpo_proposed": strategy("rest_grpo_proposed", pieces=2, success_at=0.0, least_std=0.0),
        "hill_proposed": strategy("hill_proposed", hints=2, answers=2),
        "paraphrases": strategy("paraphrases"),
        "masa": strategy("masa"),
        "think_and_direct_proposed": strategy("think_and_direct_proposed"),
        "igrpo": strategy("igrpo"),
    },
    "reward": {
        **{name: reward(name) for name in ("think_format", "structure", "answer_score", "majority_vote", "ttrv", "urpa")},
        "length": reward("length", low=0, high=20, maximum=60),
        "repetition": reward("repetition", size=1),
    },
}
"""Slot -> method -> the stage that it is tried in."""

DEFAULTS = "the default of its slot, which the others are held against"
TURNS = "reads turns of an environment: trained in tests/faults/test_resume_turns.py"
TAUGHT = "needs a teacher: trained in tests/unit/extras/distill"
WORLD = "is played, and no part of the gradient: tests/unit/extras/agents"
COLUMN = "a column of numbers for answers of its own type, or of a service, held against numbers by hand in the tests of its name"
IDLE = "the written answers give it nothing to do (calls at different places, answers that fell, votes that differ): tests/zoo, by its name"
ELSEWHERE: dict[str, dict[str, str]] = {
    "advantage": {"grpo": DEFAULTS, "spo_tree": TURNS},
    "reweight": {"teacher_reverse_kl": TAUGHT, "aspo": IDLE},
    "auxiliary_loss": {"teacher_jsd": TAUGHT, "teacher_topk_kl": TAUGHT, "llds": IDLE},
    "reward_shaping": {"scope_proposed": IDLE},
    "credit": {"broadcast": DEFAULTS},
    "policy_loss": {"ppo_clip": DEFAULTS},
    "importance_correction": {"none": DEFAULTS},
    "kl_estimator": {"k3": DEFAULTS},
    "reducer": {"seq_mean": DEFAULTS},
    "sampler": {"uniform": DEFAULTS},
    "budget": {"fixed": DEFAULTS},
    "strategy": {"plain": DEFAULTS},
    "environment": {name: WORLD for name in SLOTS["environment"].names() if SLOTS["environment"].get(name).ours},
    "reward": {name: COLUMN for name in SLOTS["reward"].names() if name not in CASES["reward"] and SLOTS["reward"].get(name).ours},
}
"""Slot -> method -> why its gradient is not looked at here."""


@pytest.fixture(scope="module")
def stages(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch, bench(tiny_files, tmp_path_factory.mktemp("written"), patch) as made:
        yield made


def merged(*stages: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for one in stages:
        out |= one | ({"rollout": out["rollout"] | one["rollout"]} if "rollout" in out and "rollout" in one else {})
    return out


def pair(made: Bench, case: Case) -> tuple[Steps, Steps]:
    """The steps with a method, and without it."""
    count = {"steps": case.steps}
    return made.steps(**merged(case.beside, case.stage, count)), made.steps(**merged(case.beside, count))


def test_every_method_has_a_case_or_a_reason() -> None:
    for slot, registry in SLOTS.items():
        ours = {name for name in registry.names() if registry.get(name).ours}
        cases, reasons = set(CASES.get(slot, {})), set(ELSEWHERE.get(slot, {}))
        assert cases | reasons == ours, slot
        assert not cases & reasons, slot


@pytest.mark.parametrize(("slot", "name"), [(slot, name) for slot, cases in CASES.items() for name in cases])
def test_it_changes_the_gradient_and_the_log_says_so(slot: str, name: str, stages: Bench) -> None:
    case = CASES[slot][name]
    with_it, without = pair(stages, case)
    assert all(math.isfinite(value) for values in with_it.values for value in values.values())
    assert max(float(one.norm()) for one in with_it.gradients) > 0, "something must have been learnt"
    assert distance(with_it, without) > SAME
    if not case.quiet:
        assert with_it.touched(f"{slot}.{name}") > 0, sorted(with_it.values[0])
