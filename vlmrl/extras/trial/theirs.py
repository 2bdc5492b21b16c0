"""Which methods of a recipe are tried before anything is trained: those of plug-ins are called, and an environment looks at its arguments.

A recipe with methods of the package alone needs no torch for this: what calls methods (`trial.step`) is imported for plug-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.config.methods import of_stage
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.registry import Entry, Registry


def try_methods(cfg: Config, found: Mapping[str, Registry[Any]]) -> list[str]:
    """Call the methods of a recipe that are not ours. `found` are the registries of its slots.

    Returns:
        What they raised that may be due to the made-up groups.

    Raises:
        ConfigError: some cannot run; each with the recipe's place, and file and line of its code.
    """
    problems: list[str] = []
    named = [(stage, *method) for stage in cfg.stages for method in of_stage(stage)]
    for _, where, slot, method in named:
        if slot == "environment":
            problems += _world_problems(found[slot].get(method.name), where, method.arguments)
    theirs = [(stage, where, slot, method) for stage, where, slot, method in named if not found[slot].get(method.name).ours]
    if theirs:
        from vlmrl.extras.trial.step import call_methods

        return call_methods(theirs, found, problems)
    if problems:
        raise ConfigError(problems)
    return []


def _world_problems(entry: Entry[Any], where: str, arguments: Mapping[str, Any]) -> list[str]:
    """What an environment finds wrong with its arguments where it begins, such as a folder that is not there."""
    tasks = entry.extra.get("tasks")
    try:
        if callable(tasks):
            tasks(**arguments)
    except ConfigError as error:
        return [f"{where}: {problem}" for problem in error.problems]
    return []
