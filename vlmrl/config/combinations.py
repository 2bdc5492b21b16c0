"""Combinations of methods that cancel or contradict each other, from what the methods declare. No method is named here.

A registration says what kind of thing a method is, and rules about kinds stand below:

* advantage: `scale="deviation"` (divides by one), `ranks_only`, `weighs_difficulty` (a sampler too), `min_generations` (2 unless said);
* reward_shaping: `monotone`, `linear(arguments)` with the `remedy` to name, `moves_reference` (its reference is no fixed one);
* policy_loss: `unscaled` (derived for advantages without a deviation);
* constraint: `acts_on`; reward: `form_only`, `shortens` ("all answers" or "right answers"); strategy: `min_generations`.

A rule of one method about its neighbours is a function in the method's own file: `refuses=rule` or `doubts=rule` in its registration,
`rule(arguments, stage) -> texts`. Errors are combinations in which a part of the recipe would do nothing, or the opposite of its name.
Warnings are combinations that run as written but rarely mean what their author wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmrl.config.methods import of_stage
from vlmrl.config.schema import Config, GrpoSection, Method, RolloutStage, StageBase
from vlmrl.defaults import DEFAULTS
from vlmrl.registry import Registry


@dataclass(frozen=True)
class Declared:
    """A method of a stage, with what its registration declares."""

    where: str
    """Dotted path in the recipe."""
    slot: str
    method: Method
    extra: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.slot.removeprefix('policy_')} '{self.method.name}'"


@dataclass(frozen=True)
class View:
    """A stage with the declarations of its methods. Unknown names are left out: they are reported elsewhere."""

    stage: Any
    methods: tuple[Declared, ...]

    @staticmethod
    def of(stage: StageBase, registries: Mapping[str, Registry[Any]]) -> View:
        found = [(where, slot, method) for where, slot, method in of_stage(stage) if method.name in registries[slot].names()]
        return View(stage, tuple(Declared(where, slot, method, registries[slot].get(method.name).extra) for where, slot, method in found))

    def at(self, field: str) -> str:
        """Dotted path of a field of the stage."""
        return f"stages.{self.stage.name}.{field}"

    def that(self, slot: str, declares: str) -> list[Declared]:
        """Methods of a slot whose declaration is true."""
        return [d for d in self.methods if d.slot == slot and d.extra.get(declares)]

    def scaled(self) -> list[Declared]:
        return [d for d in self.methods if d.slot == "advantage" and d.extra.get("scale") == "deviation"]

    def acting_on(self, what: str) -> list[Declared]:
        return [d for d in self.methods if d.slot == "constraint" and d.extra.get("acts_on") == what]


Told = Iterator[tuple[str, str]]
"""Dotted path in the recipe, and what is to be said about it."""
Rule = Callable[[View], Told]


# ---- refused -----------------------------------------------------------------------------------------------------------


def rows_per_group(view: View) -> Told:
    if not isinstance(view.stage, RolloutStage):
        return
    rollout = view.stage.rollout
    for d in view.methods:
        least = d.extra.get("min_generations", 2 if d.slot == "advantage" else 1)
        if rollout.num_generations < least:
            why = d.extra.get("min_generations_why", "which compares rows of a group" if d.slot == "advantage" else "")
            given = f"rollout.num_generations ({rollout.num_generations}) must be at least {least} for {d}"
            yield view.at("rollout.num_generations"), f"{given}, {why}" if why else given


def cancelled_shaping(view: View) -> Told:
    for advantage in view.that("advantage", "ranks_only"):
        for shaping in view.that("reward_shaping", "monotone"):
            yield shaping.where, f"{advantage} uses ranks only, so {shaping} (strictly monotone) would do nothing; remove one of them"
    for advantage in view.scaled():
        for shaping in view.that("reward_shaping", "linear"):
            if shaping.extra["linear"](shaping.method.arguments):
                yield (
                    shaping.where,
                    f"{shaping} is linear as it is given here, and {advantage} divides by the deviation: the correction cancels; "
                    f"{shaping.extra['remedy']}, or an advantage without a deviation",
                )


def ignored_with_group_loss(view: View) -> Told:
    stage = view.stage
    if not isinstance(stage, GrpoSection) or stage.group_loss is None:
        return
    correction = stage.importance_correction.name != DEFAULTS["importance_correction"]
    ignored = [name for name, on in (("beta", stage.beta > 0), ("importance_correction", correction)) if on]
    ignored += sorted(d.method.name for d in [*view.acting_on("loss"), *view.acting_on("beta")])
    ignored += [f"auxiliary_losses ({method.name})" for method in stage.auxiliary_losses]
    if ignored:
        text = f"group_loss '{stage.group_loss.name}' has a constraint of its own and ignores {', '.join(ignored)}; remove them"
        yield view.at("group_loss"), text


def listed_twice(view: View) -> Told:
    for slot in ("constraint", "auxiliary_loss", "reward_shaping", "reweight"):
        places: dict[str, list[str]] = {}
        for d in view.methods:
            if d.slot == slot and (slot == "constraint" or d.extra.get("remembers")):
                places.setdefault(d.method.name, []).append(d.where)
        yield from ((places[name][1], f"{slot} '{name}' is listed twice") for name in sorted(places) if len(places[name]) > 1)
    steering = view.acting_on("beta")
    if len(steering) > 1:
        yield steering[1].where, f"{' and '.join(map(str, steering))} both steer beta; keep one of them"


def moving_reference(view: View) -> Told:
    for d in (d for d in view.methods if d.extra.get("moves_reference")):
        steering = [one.method.name for one in view.acting_on("beta")]
        if getattr(view.stage, "beta", 0.0) > 0 or steering:
            without = f" and no {', '.join(steering)}" if steering else ""
            yield d.where, f"{d} takes the place of the divergence term, and its reference moves; set beta to 0{without}"


def refused_by_methods(view: View) -> Told:
    for d in view.methods:
        if "refuses" in d.extra:
            yield from ((d.where, text) for text in d.extra["refuses"](d.method.arguments, view.stage))


# ---- pointed out -------------------------------------------------------------------------------------------------------


def unscaled_losses(view: View) -> Told:
    for loss in view.that("policy_loss", "unscaled"):
        for advantage in view.scaled():
            text = f"{loss} is derived for advantages that are not divided by a deviation; {advantage} is; take one that is not"
            yield advantage.where, text


def twice_difficulty(view: View) -> Told:
    for sampler in view.that("sampler", "weighs_difficulty"):
        for advantage in view.that("advantage", "weighs_difficulty"):
            yield sampler.where, f"{sampler} and {advantage} both weigh difficulty; compare with each alone"


def form_outweighs(view: View) -> Told:
    rewards = [(d, float(getattr(d.method, "weight", 1.0))) for d in view.methods if d.slot == "reward"]
    form = sum(abs(weight) for d, weight in rewards if d.extra.get("form_only"))
    others = sum(abs(weight) for d, weight in rewards if not d.extra.get("form_only"))
    if form and others and form >= others:
        names = ", ".join(f"'{d.method.name}'" for d, _ in rewards if d.extra.get("form_only"))
        text = f"reward {names} weighs {form}, the others together {others}: a well-formed wrong answer can beat a right one"
        yield view.at("rewards"), text


def gives_up_thoughts(view: View) -> Told:
    """Costs on length that a thought cannot earn back, where the model may leave it out."""
    if getattr(view.stage, "answer_format", None) != "think_or_not":
        return
    shortening = [d for d in view.methods if d.slot == "reward" and d.extra.get("shortens")]
    for d in shortening:
        if d.extra["shortens"] == "all answers":
            text = (
                f"{d} pays short answers whether they are right or wrong, and with answer_format 'think_or_not' a thought can be left out"
            )
            yield d.where, f"{text}: the model may stop thinking before its thoughts are right; let only right answers earn it"
    for advantage in view.that("advantage", "ranks_only"):
        for d in shortening:
            text = f"{advantage} uses ranks only, so the least difference in {d} counts as much as right or wrong"
            yield advantage.where, f"{text}, and thoughts may be given up; take an advantage that uses the sizes of rewards, or drop {d}"


def doubted_by_methods(view: View) -> Told:
    for d in view.methods:
        if "doubts" in d.extra:
            yield from ((d.where, text) for text in d.extra["doubts"](d.method.arguments, view.stage))


ERRORS: tuple[Rule, ...] = (
    rows_per_group,
    cancelled_shaping,
    ignored_with_group_loss,
    listed_twice,
    moving_reference,
    refused_by_methods,
)
WARNINGS: tuple[Rule, ...] = (unscaled_losses, twice_difficulty, form_outweighs, gives_up_thoughts, doubted_by_methods)


def _told(cfg: Config, registries: Mapping[str, Registry[Any]], rules: tuple[Rule, ...]) -> list[str]:
    views = [View.of(stage, registries) for stage in cfg.stages]
    return [f"{where}: {text}" for view in views for rule in rules for where, text in rule(view)]


def contradictions(cfg: Config, registries: Mapping[str, Registry[Any]]) -> list[str]:
    """Combinations that are refused; empty when there is none."""
    out = _told(cfg, registries, ERRORS)
    if cfg.model.lora is not None:
        moving = [d for stage in cfg.stages for d in View.of(stage, registries).methods if d.extra.get("moves_reference")]
        out += [f"{d.where}: {d} averages the reference's weights, and with model.lora the reference has none of its own" for d in moving]
    return out


def doubts(cfg: Config, registries: Mapping[str, Registry[Any]]) -> list[str]:
    """Combinations that are allowed and pointed out."""
    return _told(cfg, registries, WARNINGS)
