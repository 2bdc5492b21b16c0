"""The runs that claims need: base models, fine-tuned starts and arms, each named by the hash of all that can change its numbers."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.claims.regimes import PILOT_WORLD_SEED, RECORDER, REGIMES
from benchmarks.claims.spec import Arm, Claim, Regime, Stage
from benchmarks.common import ROOT

FORMAT = 3
"""Raise it when what a cell does changes without a change of its recipe, so that kept cells are run anew."""
PILOTS = 101
"""First seed of pilots."""
RECIPES = ROOT / "configs" / "recipes"
PLUGIN = "benchmarks.claims.plugin"
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


Kind = Literal["base", "start", "arm"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One command: `base` makes a world's base model of a seed, `start` fine-tunes it, `arm` trains from one of the two."""

    kind: Kind
    regime: str
    arm: str
    """Name of the arm or start; `base` for a base model."""
    seed: int
    recipe: str
    settings: tuple[str, ...]
    """Overrides, without where files lie."""
    stage: Stage | None
    """The one stage that it trains; None for a base model."""
    records: bool
    after: Cell | None
    """The cell whose model it starts from."""
    digest: str

    @property
    def name(self) -> str:
        return f"{self.regime}-{self.arm}-{self.seed}-{self.digest[:8]}"

    @property
    def cache(self) -> str:
        """Folder of the world and base model, one for each seed: a cache is locked while a base model is trained in it."""
        return f"cache/{self.regime}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is run."""

    seeds: int | None = None
    """Of every regime; None: as many as the regime says."""
    quick: bool = False
    """One seed and a few steps: proves the machinery and decides nothing."""
    first: int = 0
    """The first seed. Pilots begin at `PILOTS`, where the plan has none."""
    more: tuple[str, ...] = ()
    """Further overrides for every run."""

    def seeds_of(self, regime: Regime) -> range:
        count = 1 if self.quick else self.seeds or regime.seeds
        return range(self.first, self.first + count)


def settings_of(regime: Regime, seed: int, plan: Plan) -> dict[str, str]:
    """Key -> value of the overrides that all runs of a regime and seed share."""
    given = [*regime.settings, *(f"{key}={value}" for key, value in _QUICK.items() if plan.quick)]
    given += [f"toy.world.seed={PILOT_WORLD_SEED}"] if plan.first == PILOTS else []
    given += ["checkpoint.every=20", "checkpoint.keep=1", f"toy.base_seed={seed}", f"run.seed={seed}", *plan.more]
    return dict(one.split("=", 1) for one in given)


def stages_of(regime: Regime, plan: Plan) -> dict[str, Stage]:
    """`sft` (where the recipe has it) and `rl`: the stages that starts and arms are changes of."""
    from vlmrl.config.load import load

    settings = [f"{key}={value}" for key, value in settings_of(regime, 0, plan).items()]
    config = load(RECIPES / f"{regime.recipe}.yaml", settings).config.model_dump(mode="json")
    found: dict[str, Stage] = {"sft" if stage["kind"] == "sft" else "rl": stage for stage in config["stages"]}
    # what a regime replaces of a section leaves the section's other fields as the recipe has them
    for key, value in regime.rl.items():
        old = found["rl"].get(key)
        found["rl"][key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) and "name" not in value else value
    if plan.quick:
        found["rl"] |= {"steps": 2, "rollout": found["rl"]["rollout"] | {"prompts_per_step": 4, "max_new_tokens": 6}}
        if "sft" in found:
            found["sft"] |= {"steps": 2, "batch": 4}
    return found


def arm_stage(regime: Regime, arm: Arm, rl: Stage, plan: Plan) -> Stage:
    """The RL stage of an arm."""
    stage = arm.change(rl)
    # a change of the rollout section replaces single fields of it
    stage["rollout"] = {**rl["rollout"], **stage["rollout"]}
    if plan.quick:
        stage["rollout"]["max_new_tokens"] = 6
    if arm.records:
        stage["reward_shaping"] = [copy.deepcopy(RECORDER), *stage["reward_shaping"]]
    return stage


def cells_of(regime: Regime, arms: Iterable[str], plan: Plan) -> list[Cell]:
    """The runs of some arms of a regime, seed by seed, each behind what it starts from."""
    wanted = [regime.arm(name) for name in dict.fromkeys(arms)]
    stages = stages_of(regime, plan)
    out: list[Cell] = []
    for seed in plan.seeds_of(regime):
        base = _cell(regime, seed, plan, "base", "base")
        now = [arm for arm in wanted if arm.seeds is None or seed - plan.first < arm.seeds]
        starts = {
            name: _cell(regime, seed, plan, "start", f"sft_{name}", stage=regime.starts[name](stages["sft"]), after=base)
            for name in dict.fromkeys(arm.start for arm in now)
            if name is not None
        }
        out += [base, *starts.values()]
        for arm in now:
            after = base if arm.start is None else starts[arm.start]
            stage = arm_stage(regime, arm, stages["rl"], plan)
            out.append(_cell(regime, seed, plan, "arm", arm.name, stage=stage, after=after, records=arm.records))
    return out


def _cell(
    regime: Regime,
    seed: int,
    plan: Plan,
    kind: Kind,
    name: str,
    *,
    stage: Stage | None = None,
    after: Cell | None = None,
    records: bool = False,
) -> Cell:
    recipe = str(RECIPES / f"{regime.recipe}.yaml")
    # overrides of stages are in `stage` already (`stages_of`), and a run has only one of the recipe's stages
    settings = {key: value for key, value in settings_of(regime, seed, plan).items() if not key.startswith("stages.")}
    if stage is not None:
        # the start of an arm is asked by the run that made it, and a base model by the arm itself
        of_base = kind == "arm" and after is not None and after.kind == "base"
        settings |= {"stages": json.dumps([stage]), "eval.at_start": json.dumps(of_base)}
    if kind == "arm":
        settings["eval.every"] = str(1 if plan.quick else regime.every)
    if records:
        settings["plugins"] = json.dumps([PLUGIN])
    pairs = tuple(f"{key}={value}" for key, value in settings.items())
    return Cell(
        kind=kind,
        regime=regime.name,
        arm=name,
        seed=seed,
        recipe=recipe,
        settings=pairs,
        stage=stage,
        records=records,
        after=after,
        digest=digest(kind, recipe, pairs, after),
    )


def cells_for(claims: Iterable[Claim], plan: Plan) -> list[Cell]:
    """The runs of some claims, without repetition: seed by seed over all regimes, so that stopping early leaves whole pairs."""
    arms: dict[str, list[str]] = {}
    for claim in claims:
        arms.setdefault(claim.regime, []).extend(claim.arms())
    cells = [cell for name, of in arms.items() for cell in cells_of(REGIMES[name], of, plan)]
    return sorted(cells, key=lambda cell: cell.seed)


def digest(kind: str, recipe: str, settings: Sequence[str], after: Cell | None) -> str:
    """Hash of all of a resolved recipe that can change a number, of what it starts from, and of `FORMAT`: not where files lie, nor what
    shows progress."""
    from vlmrl.config.load import load

    config: Mapping[str, Any] = load(Path(recipe), list(settings)).config.model_dump(mode="json")
    # a base model is the same whatever is trained from it
    left_out = ("run", "toy", "checkpoint") if kind != "base" else ("run", "toy", "checkpoint", "stages", "eval", "plugins")
    identity = {
        "format": FORMAT,
        "kind": kind,
        "seed": config["run"]["seed"],
        "toy": {key: value for key, value in (config.get("toy") or {}).items() if key != "cache"},
        "after": None if after is None else after.digest,
        **{key: value for key, value in config.items() if key not in left_out},
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def arguments_of(cell: Cell, out: Path, machine: Sequence[str]) -> list[str]:
    """The command of a cell, without the interpreter. `machine`: overrides that change no number."""
    places = [f"run.name={cell.name}", f"run.root={out}", "run.trackers=[]", f"toy.cache={out / cell.cache}", *machine]
    if cell.kind == "base":
        return ["tools", "toy", "prepare", cell.recipe, *cell.settings, *places]
    model = [] if cell.after is None or cell.after.kind == "base" else [f"model.path={out / cell.after.name / 'final'}"]
    return ["train", cell.recipe, *cell.settings, *places, *model]


def groups_file(cell: Cell, out: Path) -> Path:
    """Where the recorder of a cell writes."""
    return out / f"{cell.name}.groups.jsonl"


def is_finished(cell: Cell, out: Path) -> bool:
    return (out / cell.name / "FINISHED").exists()
