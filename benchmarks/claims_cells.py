"""The claims of papers that the toy world can be asked about: recipes, arms, what is measured, and when a claim holds.

An arm is a recipe's RL stage with the named changes; everything else, and the number of rollouts, is the same for all arms of a claim.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FORMAT = 1
"""Raise it when what a cell does changes without a change of its recipe, so that kept cells are run anew."""
Stage = dict[str, Any]
Measures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One thing that must be so for a claim to hold: a measure of one arm against another's (or, without `than`, against 0)."""

    text: str
    arm: str
    than: str | None
    measure: str
    kind: Literal["greater", "less", "not_less"]
    margin: float = 0.0
    """For `not_less`: how much less still counts as equal; fixed before anything was run."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, the arms that are run for it, and its conditions."""

    id: str
    title: str
    paper: str
    says: str
    """What the paper claims, in our words."""
    recipe: str
    arms: Mapping[str, Callable[[Stage], Stage]]
    conditions: Sequence[Condition]
    shown: Sequence[str]
    """Measures in the table, in order; names or beginnings of names that end with `*`."""
    shared_sft: bool = False
    """Whether all arms start from one fine-tuned model per seed (the recipe's SFT stage)."""
    own_sft: Mapping[str, Callable[[Stage], Stage]] = field(default_factory=dict)
    """Arm -> change of the SFT stage, where arms are fine-tuned each in their way."""
    every: int | None = None
    """RL steps between two times that the held-out questions are asked, for claims about the number of rollouts."""
    target: tuple[str, float] | None = None
    """(measure, share) for claims about the number of rollouts: the share of the way from where all arms start to 1."""


def changed(**changes: Any) -> Callable[[Stage], Stage]:
    """The stage with top-level fields replaced."""
    return lambda stage: copy.deepcopy(stage) | copy.deepcopy(changes)


def as_it_is(stage: Stage) -> Stage:
    return copy.deepcopy(stage)


def _strategy(name: str) -> Callable[[Stage], Stage]:
    return lambda stage: {"rollout": stage["rollout"] | {"strategy": {"name": name}}}


def _temporal(strategy: str, **more: Any) -> Callable[[Stage], Stage]:
    def change(stage: Stage) -> Stage:
        return copy.deepcopy(stage) | _strategy(strategy)(stage) | {"advantage": {"name": "grpo"}, "reward_shaping": []} | more

    return change


_FORMAT = {"name": "format", "weight": 0.1}
_ADDITIVE = [
    {"name": "exact", "weight": 1 / 3},
    {"name": "rule_consistency", "weight": 1 / 3},
    {"name": "rule_grounding", "weight": 1 / 3},
    {"name": "format", "weight": 0.0},
]
_MULTIPLICATIVE = [
    {"name": "exact", "weight": 0.5},
    {"name": "rule_consistency", "weight": 0.0},
    {"name": "rule_grounding", "weight": 0.5},
    {"name": "format", "weight": 0.0},
]
_FORMED = {"name": "product", "reward": "rule_grounding", "factor": "format"}

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        Claim(
            id="g2rpo",
            title="G2RPO balances tasks of unequal reward shape",
            paper="arXiv:2604.08539",
            says="One RL run over tasks with sparse, dense and heavy-tailed rewards gives each task its due when advantages are mapped to "
            "a normal law instead of z-scored: no task is left behind, and advantages are free of skew and outliers.",
            recipe="toy_g2rpo",
            arms={"G2RPO": as_it_is, "GRPO": changed(advantage={"name": "grpo"})},
            conditions=(
                Condition(text="gain of the task that gains least", arm="G2RPO", than="GRPO", measure="least gain", kind="greater"),
                Condition(text="mean gain over tasks", arm="G2RPO", than="GRPO", measure="mean gain", kind="not_less", margin=0.02),
                Condition(text="largest skewness of a task", arm="G2RPO", than="GRPO", measure="largest |skewness|", kind="less"),
                Condition(text="largest kurtosis of a task", arm="G2RPO", than="GRPO", measure="largest kurtosis", kind="less"),
            ),
            shown=("score before", "gain *", "least gain", "mean gain", "skewness *", "kurtosis *"),
        ),
        Claim(
            id="fgrpo",
            title="Faithful GRPO makes reasoning faithful at no loss of accuracy",
            paper="arXiv:2604.08476",
            says="Consistency and grounding of thoughts as constraints with Lagrange multipliers lower the rate of inconsistent thoughts "
            "and raise grounding without a loss of accuracy, and do better than the same terms added or multiplied into the reward.",
            recipe="toy_fgrpo",
            shared_sft=True,
            arms={
                "FGRPO": as_it_is,
                "GRPO": changed(rewards=[{"name": "exact"}, _FORMAT], constraints=[]),
                "additive": changed(rewards=_ADDITIVE, constraints=[], reward_shaping=[_FORMED]),
                "multiplicative": changed(
                    rewards=_MULTIPLICATIVE,
                    constraints=[],
                    reward_shaping=[{"name": "product", "reward": "exact", "factor": "rule_consistency"}, _FORMED],
                ),
            },
            conditions=(
                Condition(text="consistent thoughts of right answers", arm="FGRPO", than="GRPO", measure="consistency", kind="greater"),
                Condition(text="grounding", arm="FGRPO", than="GRPO", measure="grounding", kind="greater"),
                Condition(text="accuracy", arm="FGRPO", than="GRPO", measure="exact", kind="not_less", margin=0.02),
                Condition(text="right and faithful", arm="FGRPO", than="additive", measure="right and faithful", kind="greater"),
                Condition(text="right and faithful", arm="FGRPO", than="multiplicative", measure="right and faithful", kind="greater"),
            ),
            shown=("exact", "consistency", "grounding", "right and faithful", "tokens"),
        ),
        Claim(
            id="ton",
            title="TON skips thoughts where they are not needed",
            paper="arXiv:2505.16854",
            says="Thought dropout in fine-tuning and then GRPO shortens answers at equal accuracy against fine-tuning with all thoughts "
            "and then GRPO, and the model skips more often on easy questions.",
            recipe="toy_ton",
            own_sft={"TON": as_it_is, "thinking": changed(thought_dropout=0.0)},
            arms={"TON": as_it_is, "thinking": as_it_is},
            conditions=(
                Condition(text="tokens per answer", arm="TON", than="thinking", measure="tokens", kind="less"),
                Condition(text="accuracy", arm="TON", than="thinking", measure="exact", kind="not_less", margin=0.02),
                Condition(
                    text="thoughts skipped, easy minus hard questions", arm="TON", than=None, measure="skips easy - hard", kind="greater"
                ),
            ),
            shown=("exact", "exact easy", "exact hard", "tokens", "skips easy", "skips hard", "skips easy - hard"),
        ),
        Claim(
            id="tempsamp",
            title="TempSamp-R1: a ground-truth row and non-linear shaping",
            paper="arXiv:2509.18056",
            says="A ground-truth answer in each group with non-linear shaping of the rewards beats GRPO and beats the ground-truth row "
            "alone in mean IoU, and keeps the skewness of advantages nearer to 0 than either.",
            recipe="toy_grounding",
            shared_sft=True,
            arms={
                "TempSamp-R1": _temporal("offpolicy_gt", reward_shaping=[{"name": "tempsamp_nonlinear", "reward": "temporal_iou"}]),
                "GRPO": _temporal("plain"),
                "unrepaired": _temporal("offpolicy_gt"),
            },
            conditions=(
                Condition(text="mIoU", arm="TempSamp-R1", than="GRPO", measure="miou", kind="greater"),
                Condition(text="mIoU", arm="TempSamp-R1", than="unrepaired", measure="miou", kind="greater"),
                Condition(text="|skewness| of advantages", arm="TempSamp-R1", than="GRPO", measure="|skewness|", kind="less"),
                Condition(text="|skewness| of advantages", arm="TempSamp-R1", than="unrepaired", measure="|skewness|", kind="less"),
            ),
            shown=("miou", "r1@0.5", "r1@0.7", "skewness", "|skewness|", "tokens"),
        ),
        Claim(
            id="curriculum_gui",
            title="A curriculum by trajectory length needs fewer rollouts",
            paper="arXiv:2508.11360",
            says="Training on short GUI trajectories first reaches the same success with less training than uniform sampling. (The paper's "
            "method could not be read; the sampler is ours, and so is this claim in its precise form.)",
            recipe="toy_curriculum_gui",
            arms={"curriculum": as_it_is, "uniform": changed(sampler={"name": "uniform"})},
            every=5,
            target=("step_success", 0.5),
            conditions=(
                Condition(text="rollouts to the target", arm="curriculum", than="uniform", measure="rollouts to target", kind="less"),
            ),
            shown=("score before", "target", "rollouts to target", "step_success@*", "mean success"),
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run."""

    claim: str
    arm: str
    """`sft` for the model that all arms of a seed start from."""
    seed: int
    recipe: str
    overrides: tuple[str, ...]
    parent: Cell | None
    digest: str
    """Hash of the resolved recipe, of the parent's, and of `FORMAT`."""

    @property
    def name(self) -> str:
        return f"{self.claim}-{self.arm.lower().replace(' ', '_')}-{self.seed}-{self.digest[:8]}"


def cells_of(claim: Claim, seeds: Sequence[int], recipes: Path, extra: Sequence[str]) -> list[Cell]:
    """Every run of a claim, parents before children. `extra`: overrides for every run."""
    from vlmrl.config.load import load

    path = recipes / f"{claim.recipe}.yaml"
    extra = [*extra, *([] if claim.every is None else [f"eval.every={claim.every}"])]
    stages = {stage["name"]: stage for stage in load(path, list(extra)).config.model_dump(mode="json", exclude_defaults=False)["stages"]}
    sft = next((stage for stage in stages.values() if stage["kind"] == "sft"), None)
    rl = next(stage for stage in stages.values() if stage["kind"] == "grpo")
    out: list[Cell] = []
    for seed in seeds:
        shared: Cell | None = None
        if claim.shared_sft:
            assert sft is not None
            # what RL is measured against: the fine-tuned model is asked in the format of the RL stage
            shared = make_cell(claim, "sft", seed, path, [sft], extra, parent=None)
            out.append(shared)
        for arm, change in claim.arms.items():
            own = [claim.own_sft[arm](sft)] if arm in claim.own_sft and sft is not None else []
            out.append(make_cell(claim, arm, seed, path, [*own, change(rl)], extra, parent=shared))
    return out


def make_cell(
    claim: Claim,
    arm: str,
    seed: int,
    path: Path,
    stages: Sequence[Stage],
    extra: Sequence[str],
    *,
    parent: Cell | None,
) -> Cell:
    """A cell with its digest."""
    from vlmrl.config.load import load

    overrides = (*extra, f"stages={json.dumps(list(stages))}", f"run.seed={seed}")
    return Cell(
        claim=claim.id,
        arm=arm,
        seed=seed,
        recipe=str(path),
        overrides=overrides,
        parent=parent,
        digest=digest(load(path, list(overrides)).config.model_dump(mode="json"), parent),
    )


def digest(config: Mapping[str, Any], parent: Cell | None) -> str:
    """Hash of all of a recipe that can change a number: not where files lie, nor what shows progress."""
    kept = {key: value for key, value in config.items() if key not in ("run", "toy")}
    toy = {key: value for key, value in (config.get("toy") or {}).items() if key != "cache"}
    identity = {"format": FORMAT, "seed": config["run"]["seed"], "toy": toy, "parent": None if parent is None else parent.digest, **kept}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def rollouts_of(stages: Sequence[Mapping[str, Any]]) -> int:
    """Sequences that the RL stages of a recipe train on, injected rows included."""
    return sum(s["steps"] * rollouts_per_step(s) for s in stages if s["kind"] == "grpo")


def rollouts_per_step(stage: Mapping[str, Any]) -> int:
    return stage["rollout"]["prompts_per_step"] * stage["rollout"]["num_generations"]
