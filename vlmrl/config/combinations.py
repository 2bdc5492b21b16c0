"""Combinations of methods that cancel or contradict each other, from what the methods declare. No method is named here.

A registration says what kind of thing a method is, and rules about kinds stand below:

* any method: `wants={field: names}` (made for one of these methods in another field of the stage; the first is what to write),
  `needs_injected_rows` (does something with rows that the policy did not sample, and only with those), `alternative="family"` (one of
  several ways to the same end);
* advantage: `scale="deviation"` (divides by one; the group's, unless `scale_over` says of what), `ranks_only` (of every column; "sum": of
  the sum of the columns), `weighs_difficulty` (a sampler too), `min_generations` (2 unless said), `bound` (its argument that says the
  largest reward), `uses_flat_groups` (a loss too), `moves_signs` (a credit and a constraint too): its sign is not that of the reward less
  the group's mean;
* reward_shaping: `for_tasks` (names of the tasks that it does something for), `monotone`, `linear(arguments)` with the `remedy` to
  name, `moves_reference` (its reference is no fixed one);
* policy_loss: `unscaled` (derived for advantages without a deviation), `needs_updates_per_step` (below it its gradient is that of the
  default; that of an auxiliary_loss or a constraint is 0); group_loss: `signs_only` (of the advantage it reads the sign);
* filter: `drops_flat_groups`, `sampled_rows_only` (does not look at injected rows); constraint: `acts_on`;
* reward: `form_only`, `shortens` ("all answers" or "right answers"), `best` (what the gold answer earns);
* strategy: `min_generations`, `injects_rows`, `old_from_sampler` (brings rows whose ratio is not 1 in the first update);
* any method: `needs_environment` (it reads what an environment gives); environment: `deterministic` (True unless said).

Where a declaration depends on the method's arguments it is a function of them, `declares(arguments) -> value`.

A rule of one method about its neighbours is a function in the method's own file: `refuses=rule` or `doubts=rule` in its registration,
`rule(arguments, stage) -> texts`. Errors are combinations in which a part of the recipe would do nothing, or the opposite of its name.
Warnings are combinations that run as written but rarely mean what their author wants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmrl.config.methods import of_stage
from vlmrl.config.schema import Config, GrpoSection, Method, RolloutStage, StageBase
from vlmrl.config.section import default
from vlmrl.defaults import DEFAULTS
from vlmrl.registry import Entry, Registry


@dataclass(frozen=True)
class Declared:
    """A method of a stage, with what its registration declares."""

    where: str
    """Dotted path in the recipe."""
    slot: str
    method: Method
    extra: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.slot.removeprefix('policy_')} '{self.method.name}'"

    def argument(self, name: str) -> Any:
        """An argument of the recipe, or the method's default; None where it has none."""
        return self.method.arguments.get(name, self.defaults.get(name))

    def declares(self, name: str) -> Any:
        """What the registration says under a name, for these arguments; None where it says nothing."""
        value = self.extra.get(name)
        return value({**self.defaults, **self.method.arguments}) if callable(value) else value


def _extra(entry: Entry[Any]) -> Mapping[str, Any]:
    """What a registration declares. The gold answer earns 1 from a reward of the package that says nothing, and from a plug-in's nobody
    knows what."""
    return entry.extra if entry.ours else {"best": None, **entry.extra}


@dataclass(frozen=True)
class View:
    """A stage with the declarations of its methods. Unknown names are left out: they are reported elsewhere."""

    stage: Any
    methods: tuple[Declared, ...]

    @staticmethod
    def of(stage: StageBase, registries: Mapping[str, Registry[Any]]) -> View:
        found = [(where, slot, method) for where, slot, method in of_stage(stage) if method.name in registries[slot].names()]
        entries = [(where, slot, method, registries[slot].get(method.name)) for where, slot, method in found]
        return View(
            stage,
            tuple(
                Declared(where, slot, method, _extra(entry), {p.name: p.default for p in entry.parameters.values() if not p.required})
                for where, slot, method, entry in entries
            ),
        )

    def at(self, field: str) -> str:
        """Dotted path of a field of the stage."""
        return f"stages.{self.stage.name}.{field}"

    def that(self, slot: str, declares: str) -> list[Declared]:
        """Methods of a slot whose declaration is true; "linear" is asked of the method itself."""
        return [d for d in self.methods if d.slot == slot and (d.extra.get(declares) if declares == "linear" else d.declares(declares))]

    def any_that(self, declares: str) -> list[Declared]:
        """Methods of all slots whose declaration is true."""
        return [d for d in self.methods if d.declares(declares)]

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


def _summed(view: View) -> int:
    """Reward columns that count in the sum."""
    return sum(float(getattr(d.method, "weight", 1.0)) != 0 for d in view.methods if d.slot == "reward")


def cancelled_shaping(view: View) -> Told:
    for advantage in view.that("advantage", "ranks_only"):
        for shaping in view.that("reward_shaping", "monotone"):
            if advantage.declares("ranks_only") != "sum" or _summed(view) < 2:
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
    for field in ("loss", "reduce"):
        if getattr(stage, field) != default(field):
            text = f"group_loss '{stage.group_loss.name}' takes the place of `loss` and `reduce`, so {field} '{getattr(stage, field).name}'"
            yield view.at(field), f"{text} would do nothing; remove it"


def moved_signs(view: View) -> Told:
    """What makes wrong answers out of right ones, before a loss that takes the signs of the advantages for labels."""
    for loss in view.that("group_loss", "signs_only"):
        for d in view.any_that("moves_signs"):
            yield (
                d.where,
                f"{loss} takes the sign of an advantage for right or wrong, and {d} gives signs that are not those of the reward less its "
                "group's mean; take one that only centres within the group",
            )


def unreachable_bound(view: View) -> Told:
    """An advantage that must be told the largest reward, and the gold answer earns more."""
    rewards = [d for d in view.methods if d.slot == "reward"]
    best = [d.extra.get("best", 1.0) for d in rewards]
    if getattr(view.stage, "reward_shaping", ()) or any(one is None for one in best):
        return  # what a rollout earns at most is not known
    most = sum(float(getattr(d.method, "weight", 1.0)) * float(one) for d, one in zip(rewards, best, strict=True))
    for d in (d for d in view.methods if isinstance(d.extra.get("bound"), str)):
        bound = d.argument(d.extra["bound"])
        if isinstance(bound, int | float) and most > bound + 1e-9:
            text = f"{d} has {d.extra['bound']} {bound:g}, and the gold answer earns {most:g}, the weighted sum of the rewards"
            yield d.where, f"{text}: the run would stop there; set {d.extra['bound']} to {most:g}"


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


def idle_for(view: View, tasks: Collection[str]) -> Told:
    """Methods that say what to do for some tasks (`for_tasks`), none of which is among these."""
    for d in view.any_that("for_tasks"):
        named = list(d.declares("for_tasks"))
        if not set(named) & set(tasks):
            text = f"{d} is for the tasks {', '.join(named)}, and the rows are of {', '.join(sorted(tasks)) or 'none'}"
            yield d.where, f"{text}, so it would do nothing; name one of theirs"


def idle_for_the_source(view: View) -> Told:
    if view.stage.source.task is not None:
        yield from idle_for(view, (view.stage.source.task,))


def turns_and_environments(view: View) -> Told:
    """What reads an environment without one, and what compares turns as if they were answers to one prompt."""
    if not isinstance(view.stage, RolloutStage):
        return
    if view.stage.environment is None:
        for d in view.any_that("needs_environment"):
            yield d.where, f"{d} is what an environment gives, and this stage has none; name one under `environment`"
        return
    for d in view.methods:
        if d.slot == "group_loss" or (d.slot == "advantage" and "trajectory_N" not in d.extra.get("needs", ())):
            text = f"{d} compares rollouts as answers to one prompt, and with an environment they are the turns of attempts"
            yield d.where, f"{text}; take an advantage that needs trajectories (docs/environments.md), and no group_loss"


def refused_by_methods(view: View) -> Told:
    for d in view.methods:
        if "refuses" in d.extra:
            yield from ((d.where, text) for text in d.extra["refuses"](d.method.arguments, view.stage))


# ---- pointed out -------------------------------------------------------------------------------------------------------


def unlike_others(view: View) -> Told:
    """A method that is made for another neighbour than the recipe gives it."""
    for d in view.any_that("wants"):
        for field, names in d.declares("wants").items():
            given = getattr(view.stage, field, None)
            if isinstance(given, Method) and given.name not in names and getattr(view.stage, "group_loss", None) is None:
                why = f": {d.extra['wants_why']}" if "wants_why" in d.extra else ""
                others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
                yield d.where, f"{d} is made for {field} '{names[0]}'{others}, and {field} is '{given.name}' here{why}"


def same_as_the_default(view: View) -> Told:
    """A loss that differs from the default's gradient only where the ratio is not 1."""
    updates = getattr(view.stage, "updates_per_step", None)
    moved = view.that("strategy", "old_from_sampler")
    for d in view.that("policy_loss", "needs_updates_per_step"):
        least = d.declares("needs_updates_per_step")
        if updates is not None and updates < least and not moved and getattr(view.stage, "group_loss", None) is None:
            text = f"{d} has exactly the gradient of '{DEFAULTS['loss']}' while every ratio is 1, as with updates_per_step {updates}"
            yield d.where, f"{text}; set updates_per_step to {least} or more, or keep the default"


def idle_at_ratio_one(view: View) -> Told:
    """A regulariser of the ratio, which has no gradient where every ratio is 1."""
    updates = getattr(view.stage, "updates_per_step", None)
    if updates is None or view.that("strategy", "old_from_sampler"):
        return
    for d in (*view.that("auxiliary_loss", "needs_updates_per_step"), *view.that("constraint", "needs_updates_per_step")):
        least = d.declares("needs_updates_per_step")
        if updates < least:
            text = f"{d} has no gradient while every ratio is 1, as with updates_per_step {updates}"
            yield d.where, f"{text}; set updates_per_step to {least} or more, or remove it"


def without_injected_rows(view: View) -> Told:
    if isinstance(view.stage, RolloutStage) and not view.that("strategy", "injects_rows"):
        for d in view.any_that("needs_injected_rows"):
            text = f"{d} is for rows that the policy did not sample, and strategy '{view.stage.rollout.strategy.name}' injects none"
            yield d.where, f"{text}: it would do nothing; take a strategy that injects rows, or drop it"


def dropped_before_use(view: View) -> Told:
    """Filters that drop what another method of the stage is for."""
    for d in view.that("filter", "sampled_rows_only"):
        for strategy in view.that("strategy", "injects_rows"):
            text = f"{d} looks at sampled rows only and drops the groups where all of these fail"
            yield d.where, f"{text}, which is where {strategy} gives a signal; remove one of them"
    for d in view.that("filter", "drops_flat_groups"):
        for user in (one for one in view.any_that("uses_flat_groups") if one.slot in ("advantage", "policy_loss")):
            yield d.where, f"{d} drops the groups of equal rewards, which {user} is made to learn from; remove one of them"


def stacked_alternatives(view: View) -> Told:
    families: dict[str, list[Declared]] = {}
    for d in view.any_that("alternative"):
        families.setdefault(d.declares("alternative"), []).append(d)
    for family, members in sorted(families.items()):
        if len(members) > 1:
            text = f"{', '.join(map(str, members))} are alternatives ({family}), and together they repair the same thing several times"
            yield members[1].where, f"{text}; keep one"


def only_the_balance(view: View) -> Told:
    """Shaping of one of several columns before ranks of their sum: it acts, but not as its name says."""
    for advantage in view.that("advantage", "ranks_only"):
        for shaping in view.that("reward_shaping", "monotone"):
            if advantage.declares("ranks_only") == "sum" and _summed(view) > 1:
                text = f"{advantage} uses ranks of the summed reward, so of {shaping} (strictly monotone) only the balance with the other"
                yield shaping.where, f"{text} columns is left; remove one of them if that is not meant"


def steered_beta(view: View) -> Told:
    for d in view.acting_on("beta"):
        if "beta" in view.stage.model_fields_set:
            yield view.at("beta"), f"{d} steers the weight of the divergence from its own start, so beta ({view.stage.beta:g}) is not used"


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


def doubtful_episodes(view: View) -> Told:
    """Episodes whose outcome nothing reads, or that cannot be made again."""
    if getattr(view.stage, "environment", None) is None:
        return
    if not view.any_that("needs_environment"):
        yield view.at("rewards"), "no reward reads what the environment gives, so attempts that succeed earn what others do"
    for d in view.methods:
        if d.slot == "environment" and not d.extra.get("deterministic", True):
            text = f"{d} does not show the same screens twice: a step that a crash cut off is played anew, and ends with other bits"
            yield d.where, text


def doubted_by_methods(view: View) -> Told:
    for d in view.methods:
        if "doubts" in d.extra:
            yield from ((d.where, text) for text in d.extra["doubts"](d.method.arguments, view.stage))


ERRORS: tuple[Rule, ...] = (
    rows_per_group,
    cancelled_shaping,
    ignored_with_group_loss,
    moved_signs,
    unreachable_bound,
    listed_twice,
    moving_reference,
    idle_for_the_source,
    turns_and_environments,
    refused_by_methods,
)
WARNINGS: tuple[Rule, ...] = (
    unscaled_losses,
    unlike_others,
    same_as_the_default,
    idle_at_ratio_one,
    without_injected_rows,
    dropped_before_use,
    stacked_alternatives,
    only_the_balance,
    steered_beta,
    twice_difficulty,
    form_outweighs,
    gives_up_thoughts,
    doubtful_episodes,
    doubted_by_methods,
)


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


def idle_for_rows(stage: StageBase, registries: Mapping[str, Registry[Any]], tasks: Collection[str]) -> list[str]:
    """Methods of a stage that would do nothing for rows of these tasks; what only the data can tell."""
    return [f"{where}: {text}" for where, text in idle_for(View.of(stage, registries), tasks)]


def needing(stage: StageBase, registries: Mapping[str, Registry[Any]], field: str, *, slot: str) -> list[str]:
    """Where a stage names methods of a slot that need this field."""
    return [d.where for d in View.of(stage, registries).methods if d.slot == slot and field in d.extra.get("needs", ())]


def doubts(cfg: Config, registries: Mapping[str, Registry[Any]]) -> list[str]:
    """Combinations that are allowed and pointed out."""
    return _told(cfg, registries, WARNINGS)
