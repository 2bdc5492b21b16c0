"""The regimes of the claims benchmark: four generated worlds, each with one base model per seed, and their arms."""

from __future__ import annotations

from typing import Any

from benchmarks.claims.spec import Arm, Regime, changed

WORLD_SEED = 5
"""Of all worlds: no recipe was chosen on it, and no pilot was run on it."""
PILOT_WORLD_SEED = 4
"""Of the worlds of pilots."""
_FORMAT = {"name": "format", "weight": 0.1}
_RECORDER = {"name": "claims_recorder"}


def _faithful(weight: float) -> list[dict[str, Any]]:
    """Right answers pay; thoughts that agree with the answer, and with the picture, are columns with this weight."""
    return [{"name": "exact"}, {"name": "rule_consistency", "weight": weight}, {"name": "rule_grounding", "weight": weight}, _FORMAT]


_EXACT_LABELS = {"path": "pretrain.jsonl"}
_TON = {"beta": 0.04, "rewards": [{"name": "exact"}, {"name": "format"}]}

SHELL = Regime(
    name="shell",
    text="shell game in videos of 10 s (`toy_shell`); questions for the start (easy) or for the end after 2 to 8 exchanges (hard from 4 "
    "on)",
    recipe="toy_shell",
    # one instruction for all: under a longer one, a step of a thought is farther from the second of the video that it is about
    settings=(f"toy.world.seed={WORLD_SEED}", "toy.world.test=100", "toy.base.answer_format=think"),
    rl={"steps": 20, "answer_format": "think", "kl_every": 0, "rewards": [{"name": "exact"}, _FORMAT]},
    starts={
        "careless": changed(answer_format="think"),
        "ton": changed(answer_format="think", thought_dropout=0.5, source=_EXACT_LABELS),
        "thinking": changed(answer_format="think", thought_dropout=0.0, source=_EXACT_LABELS),
        "answers": changed(answer_format="answer_only", thought_dropout=0.0, source=_EXACT_LABELS),
    },
    arms=(
        Arm(name="uniform", start="careless"),
        Arm(
            name="curriculum",
            start="careless",
            change=changed(sampler={"name": "curriculum_gui", "tag": "difficulty", "edges": [0, 3], "stage_epochs": 0.2}),
        ),
        Arm(
            name="reversed",
            start="careless",
            seeds=4,
            change=changed(sampler={"name": "curriculum_gui", "tag": "difficulty", "edges": [2, 4], "easier": "high", "stage_epochs": 0.2}),
        ),
        Arm(
            name="dynamic",
            start="careless",
            change=changed(filters=[{"name": "zero_variance"}], dynamic_sampling={"max_batches": 3}),
        ),
        Arm(name="ton", start="ton", change=changed(**_TON)),
        Arm(name="thinking", start="thinking", change=changed(**_TON)),
        Arm(name="answers", start="answers", change=changed(answer_format="answer_only"), seeds=3),
    ),
    every=2,
    questions=100,
    seeds=7,
    seconds={"base": 230, "start": 73, "arm": 59},
)

SPATIAL = Regime(
    name="spatial",
    text="relations of two objects on pictures (`toy_fgrpo`): a thought gives both boxes and a conclusion; over half of the "
    "thoughts of the fine-tuning contradict their answer or the picture",
    recipe="toy_fgrpo",
    settings=(f"toy.world.seed={WORLD_SEED}", "toy.world.validation=1", "toy.world.test=120"),
    rl={"steps": 24, "rewards": _faithful(0.0), "constraints": []},
    starts={"unfaithful": changed()},
    arms=(
        Arm(name="right", start="unfaithful"),
        Arm(
            name="fgrpo",
            start="unfaithful",
            change=changed(constraints=[{"name": "lagrangian", "thresholds": {"rule_consistency": 0.95, "rule_grounding": 0.95}}]),
        ),
        Arm(name="additive", start="unfaithful", change=changed(rewards=_faithful(0.5))),
        Arm(
            name="multiplicative",
            start="unfaithful",
            seeds=4,
            change=changed(reward_shaping=[{"name": "product", "reward": "exact", "factor": "rule_consistency"}]),
        ),
        Arm(name="gdpo", start="unfaithful", change=changed(rewards=_faithful(0.5), advantage={"name": "gdpo"})),
    ),
    every=6,
    questions=120,
    seeds=7,
    seconds={"base": 222, "start": 33, "arm": 70},
)

_IOU = {"rewards": [{"name": "temporal_iou"}], "advantage": {"name": "grpo"}}
_GROUND_TRUTH = {"rollout": {"max_new_tokens": 24, "strategy": {"name": "offpolicy_gt"}}}

GROUNDING = Regime(
    name="grounding",
    text="temporal grounding in videos of 5.5 to 8 s (`toy_grounding`), answers alone; the base model is stopped early, so that "
    "sampled spans hit but seldom fit",
    recipe="toy_grounding",
    settings=(
        f"toy.world.seed={WORLD_SEED}",
        "toy.world.sft=1",
        "toy.world.validation=1",
        "toy.world.test=150",
        "toy.base.steps=80",
        "toy.base.answer_format=answer_only",
    ),
    rl={
        "steps": 40,
        "answer_format": "answer_only",
        "kl_every": 0,
        "rollout": {"max_new_tokens": 24, "strategy": {"name": "plain"}},
        **_IOU,
    },
    arms=(
        Arm(name="plain", records=True),
        Arm(name="ground_truth", change=changed(**_GROUND_TRUTH), records=True),
        Arm(
            name="tempsamp",
            change=changed(**_GROUND_TRUTH, reward_shaping=[{"name": "tempsamp_nonlinear", "reward": "temporal_iou"}]),
        ),
    ),
    every=10,
    questions=150,
    seeds=10,
    seconds={"base": 100, "start": 0, "arm": 75},
)

PICTURES = Regime(
    name="pictures",
    text="three tasks on pictures (`toy_g2rpo`): counting (0 or 1), box overlap (dense), the filling of a bar (1 / error, heavy-tailed); "
    "base model with half of the recipe's steps; groups of 16",
    recipe="toy_g2rpo",
    settings=(f"toy.world.seed={WORLD_SEED}", "toy.world.validation=1", "toy.world.test=240", "toy.base.steps=300"),
    rl={
        "steps": 30,
        "advantage": {"name": "grpo"},
        "rollout": {"max_new_tokens": 32, "num_generations": 16, "prompts_per_step": 9},
        "rewards": [{"name": "count"}, {"name": "box_iou"}, {"name": "inverse_error", "cap": 100.0}, _FORMAT],
    },
    arms=(
        Arm(name="grpo", records=True),
        Arm(name="g2rpo", change=changed(advantage={"name": "g2rpo"})),
        Arm(name="g2rpo_task", change=changed(advantage={"name": "g2rpo", "stages": "task"})),
    ),
    every=6,
    questions=240,
    seeds=10,
    seconds={"base": 97, "start": 0, "arm": 40},
)

REGIMES: dict[str, Regime] = {regime.name: regime for regime in (SHELL, SPATIAL, GROUNDING, PICTURES)}
RECORDER = _RECORDER
"""First entry of `reward_shaping` of arms that record."""
