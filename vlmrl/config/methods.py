"""Pass 2 of checking: every method that a config names exists, and takes the arguments that it is given.

The registries come from the caller (`vlmrl.methods.registries`), so that nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from vlmrl.config.renamed import RENAMED
from vlmrl.config.schema import Config, GrpoSection, Method, RewardMethod, RolloutStage, SourceSection, StageBase
from vlmrl.registry import Catalogue, Registry, first_of, nearest

SLOTS: Mapping[str, str] = {
    "advantage": "advantage",
    "reweight": "reweight",
    "credit": "credit",
    "loss": "policy_loss",
    "reduce": "reducer",
    "kl": "kl_estimator",
    "reward_shaping": "reward_shaping",
    "filters": "filter",
    "sampler": "sampler",
    "rewards": "reward",
    "group_loss": "group_loss",
    "auxiliary_losses": "auxiliary_loss",
    "importance_correction": "importance_correction",
    "constraints": "constraint",
    "budget": "budget",
    "environment": "environment",
}
"""Field of a stage -> registry that its methods come from. `rollout.strategy` comes from `strategy`."""


def used(config: Config) -> Iterator[tuple[str, str, Method]]:
    """Every method of a config as (dotted path, slot, method), in the order of the recipe."""
    for stage in config.stages:
        yield from of_stage(stage)


def of_stage(stage: StageBase) -> Iterator[tuple[str, str, Method]]:
    """Every method of a stage, of whatever kind it is: what stands in a field of a slot's name and is a method."""
    for field, slot in SLOTS.items():
        value: object = getattr(stage, field, None)
        if isinstance(value, Method):
            yield f"stages.{stage.name}.{field}", slot, value
        elif isinstance(value, tuple):
            methods = [m for m in cast("tuple[object, ...]", value) if isinstance(m, Method)]
            yield from ((f"stages.{stage.name}.{field}.{i}", slot, method) for i, method in enumerate(methods))
    if isinstance(stage, RolloutStage):
        yield f"stages.{stage.name}.rollout.strategy", "strategy", stage.rollout.strategy


def check_methods(config: Config, registries: Mapping[str, Registry[Any]]) -> list[str]:
    """Everything wrong with the names and arguments of the methods of `config`; empty when all is well."""
    out: list[str] = []
    for where, slot, method in used(config):
        old = _renamed(method, registries[slot])
        out += [f"{where}.{key}: '{key}' is now called '{now}'" for key, now in sorted(old.items())]
        foreign = _foreign(where, method, registries[slot])
        out += first_of([f"{where}.{key}: unknown '{key}'; {said}" for key, said in foreign.items()], where)
        misplaced = old | foreign | _misspelt(method, registries[slot])
        out += [
            f"{where}.{key}: unknown '{key}'; did you mean '{meant}'?"
            for key, meant in sorted(misplaced.items())
            if key not in old | foreign
        ]
        given = {k: v for k, v in method.arguments.items() if k not in misplaced}
        for key in foreign.keys() & _HOLDERS:
            given = method.arguments[key] | given  # they are checked as if they stood in the right place
        out += registries[slot].problems(method.name, given, where)
    return out + _reward_problems(config)


def sources(config: Config) -> Iterator[tuple[str, SourceSection]]:
    """Every source of rows of a config as (dotted path, source)."""
    for stage in config.stages:
        yield f"stages.{stage.name}.source", stage.source
    if config.eval.source is not None:
        yield "eval.source", config.eval.source
    if config.toy is not None and config.toy.base is not None:
        yield "toy.base.source", config.toy.base.source


def check_sources(config: Config, catalogues: Mapping[str, Catalogue[Any]]) -> list[str]:
    """Fields of sources that name what a catalogue does not have: `answer_type` and `adapter`, each with its catalogue."""
    named = [(f"{where}.{key}", getattr(source, key), known) for where, source in sources(config) for key, known in catalogues.items()]
    return [f"{where}: {known.problem(name)}" for where, name, known in named if name is not None and name not in known]


def _reward_problems(config: Config) -> list[str]:
    """Shapings of a reward that the stage does not have."""
    out: list[str] = []
    for stage in config.stages:
        if not isinstance(stage, GrpoSection):
            continue
        rewards = [reward.key for reward in stage.rewards]
        for i, method in enumerate(stage.reward_shaping):
            reward = method.arguments.get("reward")
            if isinstance(reward, str) and reward not in rewards:
                known = f"stages.{stage.name}.rewards has: {', '.join(rewards)}"
                out.append(f"stages.{stage.name}.reward_shaping.{i}.reward: no reward '{reward}'{nearest(reward, rewards)} ({known})")
    return out


def _renamed(method: Method, registry: Registry[Any]) -> dict[str, str]:
    """Arguments under a name of earlier versions, by their present one. A method that has a parameter of the old name keeps it."""
    own = list(registry.get(method.name).parameters) if method.name in registry.names() else []
    kind = "reward" if isinstance(method, RewardMethod) else "method"
    found = {key: now for key in method.arguments if key not in own and (now := RENAMED[kind].get(key)) is not None}
    return {key: now for key, now in found.items() if kind == "reward" or now in own}


def _foreign(where: str, method: Method, registry: Registry[Any]) -> dict[str, str]:
    """Arguments that are another trainer's, or that hold the arguments: key -> what to write instead."""
    if method.name not in registry.names():
        return {}
    out: dict[str, str] = {}
    unknown = {key: value for key, value in method.arguments.items() if key not in registry.get(method.name).parameters}
    if not unknown:
        return out
    from vlmrl.config.foreign_keys import hint  # a long table, which recipes without mistakes never ask

    for key, value in unknown.items():
        said = hint((*where.split(".")[2:], key))
        if key in _HOLDERS and isinstance(value, dict):
            out[key] = (
                f"arguments stand beside the name: {{name: {method.name}, {', '.join(f'{k}: ...' for k in cast('dict[str, Any]', value))}}}"
            )
        elif said is not None and f"is '{key}'" not in said:
            out[key] = said
    return out


_HOLDERS = frozenset({"args", "arguments", "kwargs", "options", "params", "parameters"})
"""Keys under which other programs put the arguments of a function."""


def _misspelt(method: Method, registry: Registry[Any]) -> dict[str, str]:
    """Arguments that are misspelt fields of the recipe (a reward's `weight` or `isolate`) rather than arguments of the method."""
    fields = [field for field in type(method).model_fields if field != "name"]
    own = list(registry.get(method.name).parameters) if method.name in registry.names() else []
    out: dict[str, str] = {}
    for key in method.arguments:
        hint = nearest(key, [*own, *fields])
        meant = [field for field in fields if hint == nearest(field, [field])]
        if key not in own and meant:
            out[key] = meant[0]
    return out
