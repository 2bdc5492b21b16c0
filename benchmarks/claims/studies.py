"""Each regime as a study (`vlmrl.extras.study`): its arms as overrides, the claims that are asked there, and its worlds."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims.regimes import PILOT_WORLD_SEED, RECORDER
from benchmarks.claims.spec import Arm, Claim, Regime, Stage
from benchmarks.common import ROOT
from vlmrl.extras.study.conduct import Conductor
from vlmrl.extras.study.plan import Run
from vlmrl.extras.study.spec import SEED, Study
from vlmrl.extras.study.spec import Arm as StudyArm
from vlmrl.extras.study.spec import Start as StudyStart

PILOTS = 101
"""First seed of pilots."""
RECIPES = ROOT / "configs" / "recipes"
PLUGIN = "benchmarks.claims.plugin"
MEASURES = "benchmarks.claims.measures:of_run"
BASE_SEED = "toy.base_seed"
_QUICK = {
    "toy.world.pretrain": "12",
    "toy.world.sft": "8",
    "toy.world.train": "12",
    "toy.world.validation": "2",
    "toy.world.test": "12",
    "toy.base.steps": "2",
    "toy.base.batch": "4",
    "eval.max_new_tokens": "6",
}
"""Settings of a run that only proves the machinery."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is run."""

    seeds: int | None = None
    """Of every regime; None: as many as the regime says."""
    quick: bool = False
    """One seed and a few steps: proves the machinery and decides nothing."""
    first: int = 0
    """The first seed. Pilots begin at `PILOTS`, where the plan has none."""
    more: tuple[str, ...] = ()
    """Further overrides for every run."""

    def seeds_of(self, regime: Regime) -> tuple[int, ...]:
        count = 1 if self.quick else self.seeds or regime.seeds
        return tuple(range(self.first, self.first + count))


def settings_of(regime: Regime, scale: Scale) -> list[str]:
    """Overrides that all runs of a regime share; of one key the last counts."""
    given = [*regime.settings, *(f"{key}={value}" for key, value in _QUICK.items() if scale.quick)]
    given += [f"toy.world.seed={PILOT_WORLD_SEED}"] if scale.first == PILOTS else []
    return [f"{key}={value}" for key, value in dict(one.split("=", 1) for one in [*given, *scale.more]).items()]


def stages_of(regime: Regime, scale: Scale) -> dict[str, Stage]:
    """`sft` (where the recipe has it) and `rl`: the stages that starts and arms are changes of."""
    from vlmrl.config.load import load

    config = load(RECIPES / f"{regime.recipe}.yaml", settings_of(regime, scale)).config.model_dump(mode="json")
    found: dict[str, Stage] = {"sft" if stage["kind"] == "sft" else "rl": stage for stage in config["stages"]}
    # what a regime replaces of a section leaves the section's other fields as the recipe has them
    for key, value in regime.rl.items():
        old = found["rl"].get(key)
        found["rl"][key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) and "name" not in value else value
    if scale.quick:
        found["rl"] |= {"steps": 2, "rollout": found["rl"]["rollout"] | {"prompts_per_step": 4, "max_new_tokens": 6}}
        if "sft" in found:
            found["sft"] |= {"steps": 2, "batch": 4}
    return found


def arm_stage(regime: Regime, arm: Arm, rl: Stage, scale: Scale) -> Stage:
    """The RL stage of an arm."""
    stage = arm.change(rl)
    # a change of the rollout section replaces single fields of it
    stage["rollout"] = {**rl["rollout"], **stage["rollout"]}
    if scale.quick:
        stage["rollout"]["max_new_tokens"] = 6
    if arm.records:
        stage["reward_shaping"] = [copy.deepcopy(RECORDER), *stage["reward_shaping"]]
    return stage


def study_of(regime: Regime, claims: Iterable[Claim], scale: Scale, machine: Sequence[str] = ()) -> Study:
    """The study of a regime: all of its arms, and the claims that are asked in it."""
    stages = stages_of(regime, scale)
    arms: dict[str, StudyArm] = {}
    for arm in regime.arms:
        own = [f"stages={json.dumps([arm_stage(regime, arm, stages['rl'], scale)])}", f"eval.every={1 if scale.quick else regime.every}"]
        own += [f"plugins={json.dumps([PLUGIN])}"] if arm.records else []
        arms[arm.name] = StudyArm(set=tuple(own), start=arm.start, seeds=arm.seeds)
    return Study(
        name=regime.name,
        recipe=str(RECIPES / f"{regime.recipe}.yaml"),
        # overrides of stages are in the stages of starts and arms already, and a run has only one of the recipe's
        set=tuple(one for one in settings_of(regime, scale) if not one.startswith("stages.")),
        machine=("checkpoint.every=20", "checkpoint.keep=1", "run.trackers=[]", *machine),
        starts={
            name: StudyStart(set=(f"stages={json.dumps([change(stages['sft'])])}", "eval.at_start=false"))
            for name, change in regime.starts.items()
        },
        arms=arms,
        seeds=scale.seeds_of(regime),
        pair=(SEED, BASE_SEED),
        comparisons=tuple(claim.comparison for claim in claims if claim.regime == regime.name),
        measures=(MEASURES,),
    )


def wanted(conductor: Conductor, claims: Iterable[Claim]) -> list[Run]:
    """The runs that some claims need."""
    arms = {arm for claim in claims for arm in claim.arms()}
    return [run for run in conductor.looks[-1].runs if run.arm in arms]


def share_worlds(conductor: Conductor, folder: Path) -> None:
    """Make the world of a study once, and link it into the caches of all seeds."""
    from vlmrl.config.load import load
    from vlmrl.extras.toy.kinds import make_world, world_hash

    plan = conductor.plan
    for seed in plan.study.seeds:
        toy, cache = load(plan.study.recipe, plan.settings(seed)).config.toy, plan.cache(seed)
        assert toy is not None
        assert cache is not None
        name = f"world-{world_hash(toy.world)}"
        make_world(folder / name, toy.world)
        link = cache / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(folder / name)
