"""Every advantage with every loss takes two steps on the tiny model, through the production loop, with finite numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.methods import registries
from vlmrl.run.tracking import read_metrics

SLOTS = registries()
ADVANTAGES = [name for name in SLOTS["advantage"].names() if "node_N" not in SLOTS["advantage"].get(name).extra.get("needs", ())]
"""Without those of turns in an environment, which are refused here (`algo.rules.needs_environment`): tests/faults/test_resume_turns.py."""
LOSSES = [("loss", name) for name in SLOTS["policy_loss"].names()] + [("group_loss", name) for name in SLOTS["group_loss"].names()]


def refused(advantage: str, slot: str, loss: str) -> bool:
    """A loss that takes signs for labels, with an advantage that moves them (`config.combinations`)."""
    moves = SLOTS["advantage"].get(advantage).extra.get("moves_signs", False)
    return bool(moves) and slot == "group_loss" and bool(SLOTS[slot].get(loss).extra.get("signs_only"))


ALL = [(advantage, *loss) for advantage in ADVANTAGES for loss in LOSSES if not refused(advantage, *loss)]
SAMPLE = [
    next(pair for n in range(len(LOSSES)) if (pair := (ADVANTAGES[i % len(ADVANTAGES)], *LOSSES[(i + n) % len(LOSSES)])) in ALL)
    for i in range(max(len(ADVANTAGES), len(LOSSES)))
]
SAMPLE += [next(pair for pair in ALL if pair[1:] == loss) for loss in LOSSES if loss not in [pair[1:] for pair in SAMPLE]]
"""Every advantage at least once, and every loss at least once."""


def rl_only(files: tuple[Path, Path], root: Path, **stage: Any) -> dict[str, Any]:
    """Two GRPO steps on rows that belong to trajectories, so that every method has what it needs."""
    config = runs.small_config(*files, root, **stage)
    config["stages"] = config["stages"][1:]
    config["stages"][0] |= {"steps": 2, "updates_per_step": 2, "freeze": ["vision", "projector"]}
    config["eval"] = {}
    config["checkpoint"] = {"every": 100}
    for reward in config["stages"][0]["rewards"]:
        if reward["name"] == "first_letter":
            reward["isolate"] = False  # no worker is started for a function of one line
    config["stages"][0]["source"] = {"path": "steps.jsonl"}
    steps = files[1] / "steps.jsonl"
    if not steps.exists():
        lines = [json.loads(line) for line in (files[1] / "train.jsonl").read_text().splitlines()]
        for i, line in enumerate(lines):
            line["meta"] |= {
                "trajectory": {"id": f"t{i // 2}", "step": i % 2, "length": 2 + i % 9},
                "level": i % 3,
                "paraphrases": [f"Tell me: {line['prompt']}"],
            }
        steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return config


def combined(files: tuple[Path, Path], root: Path, advantage: str, slot: str, loss: str) -> dict[str, Any]:
    """An advantage with a loss; one that compares rollouts has a constraint of its own in place of beta."""
    own = {"beta": 0.0} if slot == "group_loss" else {}
    bound = SLOTS["advantage"].get(advantage).extra.get("bound")
    given = {"name": advantage} | ({} if bound is None else {bound: 3.0})
    return rl_only(files, root, advantage=given, **{slot: {"name": loss}}, **own)


def check(config: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    code = runs.run(config)
    assert code == 0, (root / "error.txt").read_text() if (root / "error.txt").exists() else code
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
    assert len(lines) == 2
    for line in lines:
        assert line["step/skipped"] == 0.0
        numbers = {key: value for key, value in line.items() if isinstance(value, float)}
        assert all(math.isfinite(value) for value in numbers.values()), numbers
    return lines


@pytest.mark.parametrize(("advantage", "slot", "loss"), SAMPLE)
def test_a_sample_of_combinations(advantage: str, slot: str, loss: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = combined(tiny_files, tmp_path, advantage, slot, loss)
    lines = check(config, tmp_path)
    # a loss that compares right with wrong answers learns nothing from a group whose advantages all have one sign
    assert slot == "group_loss" or any(line["grad_norm"] > 0 for line in lines), "something must have been learnt"


@pytest.mark.slow
@pytest.mark.parametrize(("advantage", "slot", "loss"), [c for c in ALL if c not in SAMPLE])
def test_every_combination(advantage: str, slot: str, loss: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    check(combined(tiny_files, tmp_path, advantage, slot, loss), tmp_path)


ROLLOUT = {"num_generations": 4, "prompts_per_step": 4, "generation_batch_size": 2, "max_new_tokens": 10}
STAGES: dict[str, dict[str, Any]] = {
    "lagrangian": {
        "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.0}],
        "constraints": [{"name": "lagrangian", "thresholds": {"format": 0.9}, "min_applicable": 1}],
    },
    "entropy_band": {"constraints": [{"name": "entropy_band"}]},
    "adaptive_kl": {"constraints": [{"name": "adaptive_kl", "target": 0.01}]},
    "unbiased_kl": {"kl": {"name": "unbiased"}},
    **{f"mismatch_{name}": {"importance_correction": {"name": name}} for name in SLOTS["importance_correction"].names()},
    "tempo": {"credit": {"name": "tempo"}},
    "seq_sum": {"reduce": {"name": "seq_sum"}},
    "dynamic_sampling_refill": {
        "filters": [{"name": "difficulty_band", "reward": "temporal_iou", "low": 0.001, "high": 0.999}],
        "dynamic_sampling": {"max_batches": 3},
    },
    "pods": {"filters": [{"name": "pods", "keep": 2}]},
    "care_consistency": {
        "reward_shaping": [{"name": "care_consistency", "reward": "temporal_iou", "every": 1, "decay": 0.5}],
        "beta": 0.0,
    },
    "high_entropy": {"reweight": [{"name": "high_entropy", "share": 0.5}]},
    "reweight_per_rollout": {
        "reweight": [
            *({"name": name} for name in ("ace", "adora", "xrpo_sharpening", "ap_grpo", "gtpo_entropy")),
            {"name": "aspo", "marker": [5]},
            {"name": "dr_irl_proposed", "similarity": "format", "gap": "format"},
        ]
    },
    "reweight_per_token": {"reweight": [{"name": "gtpo"}, {"name": "hapo_low_entropy"}, {"name": "d3s_tokens"}]},
    "expo_and_llds": {
        "rollout": ROLLOUT | {"strategy": {"name": "offpolicy_gt", "gt_cot": "answer_only"}},
        "auxiliary_losses": [{"name": "expo", "weight": 0.1}, {"name": "llds", "weight": 0.1}],
    },
    "prompt_gdro_proposed": {"reweight": [{"name": "prompt_gdro_proposed"}]},
    "dcpo": {"reweight": [{"name": "dcpo", "target": 0.1}]},
    "d3s": {"filters": [{"name": "d3s", "start": 0.5}]},
    "targeted_entropy": {"constraints": [{"name": "targeted_entropy"}]},
    "ratio_variance_proposed": {"loss": {"name": "r2vpo", "weight": 0.0}, "constraints": [{"name": "ratio_variance_proposed"}]},
    "entropy_bonus": {"auxiliary_losses": [{"name": "entropy_bonus", "weight": 0.01}]},
    "knapsack": {"budget": {"name": "knapsack", "low": 2, "high": 6}},
    "sqrt_law": {"budget": {"name": "sqrt_law", "low": 2, "high": 6}},
    "replay": {"rollout": ROLLOUT | {"strategy": {"name": "replay", "success_at": 0.0}}},
    "scaf_grpo": {"rollout": ROLLOUT | {"strategy": {"name": "scaf_grpo"}}},
    "guide": {"rollout": ROLLOUT | {"strategy": {"name": "guide"}}},
    "sage": {"rollout": ROLLOUT | {"strategy": {"name": "sage"}}},
    "rltf_sd": {"rollout": ROLLOUT | {"strategy": {"name": "rltf_sd"}}},
    "s_grpo_proposed": {
        "rollout": ROLLOUT | {"strategy": {"name": "s_grpo_proposed", "exits": 2}},
        "reward_shaping": [{"name": "s_grpo_proposed", "reward": "temporal_iou", "success_at": 0.1}],
        "advantage": {"name": "dr_grpo"},
    },
    "paraphrases": {
        "rollout": ROLLOUT | {"strategy": {"name": "paraphrases"}},
        "rewards": [{"name": "temporal_iou"}, {"name": "paraphrase_agreement"}],
        "reward_shaping": [{"name": "information_consistency_proposed", "reward": "temporal_iou"}],
        "advantage": {"name": "grpo_by_question"},
    },
    "masa": {
        "rollout": ROLLOUT | {"strategy": {"name": "masa"}},
        "rewards": [{"name": "temporal_iou"}, {"name": "masa"}],
        "advantage": {"name": "grpo_by_question"},
    },
    "think_and_direct_proposed": {
        "rollout": ROLLOUT | {"strategy": {"name": "think_and_direct_proposed"}},
        "reward_shaping": [{"name": "think_and_direct_proposed", "reward": "temporal_iou", "budget": 5}],
        "advantage": {"name": "grpo_by_question"},
    },
    "hill_proposed": {
        "rollout": ROLLOUT | {"max_new_tokens": 24, "strategy": {"name": "hill_proposed", "hints": 2, "answers": 2, "success_at": 2.0}},
        "reward_shaping": [{"name": "hill_proposed", "reward": "temporal_iou", "success_at": 0.1}],
        "advantage": {"name": "grpo_by_question"},
    },
    "spo_chain_proposed": {
        "rollout": ROLLOUT | {"strategy": {"name": "spo_chain_proposed", "pieces": 2, "continuations": 1}},
        "reweight": [{"name": "spo_chain_proposed", "pieces": 2}],
    },
    "rest_grpo_proposed": {
        "rollout": ROLLOUT | {"strategy": {"name": "rest_grpo_proposed", "pieces": 2, "success_at": 0.0, "least_std": 0.0}},
        "advantage": {"name": "grpo_by_question"},
    },
    "route_step_proposed": {"rewards": [{"name": "temporal_iou"}, {"name": "route_step_proposed"}]},
    "scope_proposed": {
        "rewards": [{"name": "temporal_iou"}, {"name": "majority_vote"}],
        "reward_shaping": [{"name": "scope_proposed", "reward": "majority_vote"}],
    },
    "capo_proposed": {"reweight": [{"name": "capo_proposed"}]},
    "srpo_proposed": {"reweight": [{"name": "srpo_proposed", "success_at": 0.2}]},
    "rank_grpo": {
        "reweight": [{"name": "rank_grpo", "items": 2}],
        "loss": {"name": "rank_grpo"},
        "rewards": [{"name": "temporal_iou"}, {"name": "listed_items", "items": 2}],
    },
    "igrpo": {"rollout": ROLLOUT | {"strategy": {"name": "igrpo"}}},
    "demonstration": {
        "rollout": ROLLOUT | {"strategy": {"name": "demonstration"}},
        "loss": {"name": "luffy"},
        "advantage": {"name": "dr_grpo"},
    },
    "tempsamp_anchor": {"rollout": ROLLOUT | {"strategy": {"name": "offpolicy_gt"}}, "advantage": {"name": "tempsamp_anchor"}},
    "overlong": {"filters": [{"name": "overlong"}]},
    "selective_sample_buffer": {"filters": [{"name": "selective_sample_buffer"}]},
    "vas": {"sampler": {"name": "vas"}},
    "vade": {"sampler": {"name": "vade"}},
    "prioritized": {"sampler": {"name": "prioritized"}},
    "mixture": {"sampler": {"name": "mixture", "by": "level"}},
    "cascade": {"sampler": {"name": "cascade", "order": ["0", "1", "2"], "by": "level"}},
    "curriculum_gui": {"sampler": {"name": "curriculum_gui"}},
    "soft_overlong": {"reward_shaping": [{"name": "soft_overlong", "reward": "temporal_iou", "maximum": 10, "buffer": 4}]},
    "budget_schedule": {"reward_shaping": [{"name": "budget_schedule", "reward": "temporal_iou", "start": 8}]},
    "grpo_lambda": {"reward_shaping": [{"name": "grpo_lambda", "reward": "temporal_iou"}]},
    "gcpo": {"reward_shaping": [{"name": "gcpo", "reward": "temporal_iou", "used": "format"}]},
    "e_grpo": {"reward_shaping": [{"name": "e_grpo", "reward": "temporal_iou", "matched": "format"}]},
    "serr": {"reward_shaping": [{"name": "serr", "reward": "temporal_iou"}]},
    "pseudo_labels": {"rewards": [{"name": "urpa"}, {"name": "majority_vote"}, {"name": "surrogate_length", "maximum": 10}]},
    "p_grpo_gate": {"reward_shaping": [{"name": "p_grpo_gate", "reward": "format", "outcome": "temporal_iou"}]},
    "noisy_verifier": {
        "reward_shaping": [{"name": "noisy_verifier", "reward": "format", "false_positive": 0.1}],
        "advantage": {"name": "dr_grpo"},
    },
    "trust": {"reward_shaping": [{"name": "trust", "reward": "format", "outcome": "temporal_iou"}]},
    "length_envelope": {
        "reward_shaping": [{"name": "length_envelope", "reward": "temporal_iou", "bands": {"temporal_grounding": [1, 2, 8, 10]}}]
    },
}


@pytest.mark.parametrize("name", sorted(STAGES))
def test_other_slots(name: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    lines = check(rl_only(tiny_files, tmp_path, **STAGES[name]), tmp_path)
    if name in ("lagrangian", "adaptive_kl"):
        assert any(key.startswith(f"dual/{name}/") for key in lines[-1]), "the multiplier is logged"
