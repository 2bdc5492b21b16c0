"""Environments by name: those of the package and of plug-ins, and where a worker process finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.pool import EnvPool, PoolSettings
from vlmrl.extras.agents.protocol import Environment
from vlmrl.extras.agents.rows import asks_of
from vlmrl.plugins import import_package, import_plugins
from vlmrl.protocols import environment
from vlmrl.registry import Registry

WORLDS = "vlmrl.extras.agents.worlds"


def environments(plugins: Sequence[str] = ()) -> Registry[Callable[..., Environment]]:
    """The registry, with the environments of the package and of these modules.

    Raises:
        ConfigError: a plug-in cannot be imported.
    """
    import_package(WORLDS)
    import_plugins(plugins)
    return environment


def open_pool(
    name: str, arguments: Mapping[str, Any] | None = None, *, plugins: Sequence[str] = (), settings: PoolSettings | None = None
) -> EnvPool:
    """A pool of workers for an environment, whose name and arguments are checked first.

    Raises:
        ConfigError: an unknown name, wrong arguments, a plug-in that cannot be imported, or something that is not installed.
    """
    known = environments(plugins)
    problems = known.problems(name, arguments or {}, "environment")
    if problems:
        raise ConfigError(problems)
    entry = known.get(name)
    missing = missing_for(name)
    if missing is not None:
        raise ConfigError(f"environment '{name}': {missing}")
    default_tasks(name, arguments)  # complains of arguments that name no task
    module = entry.function.__module__
    if module == "__main__":
        raise ConfigError(f"environment '{name}' is defined in the script that runs; a worker cannot import it: put it into a module")
    alike = bool(entry.extra.get("deterministic", True))
    return EnvPool(name, arguments, modules=[*plugins, module], settings=settings, alike=alike)


def missing_for(name: str) -> str | None:
    """What must be installed before an environment can run, in words; None where nothing is missing."""
    said: Callable[[], str | None] = environment.get(name).extra.get("missing", lambda: None)
    return said()


def lacking_for(name: str) -> str | None:
    """What must be installed for a part of an environment that runs without it, in words; None where nothing is missing."""
    said: Callable[[], str | None] = environment.get(name).extra.get("lacking", lambda: None)
    return said()


def begins_alike(name: str) -> bool:
    """Whether a registered environment says that it may begin with the same screen for every seed: a fixed board, a world of others."""
    return bool(environment.get(name).extra.get("begins_alike", False))


def default_tasks(name: str, arguments: Mapping[str, Any] | None = None) -> tuple[Mapping[str, Any], ...]:
    """The tasks that an environment declares, with these arguments; one without content where it declares none.

    Raises:
        ConfigError: the arguments name tasks that are not there.
    """
    extra = environment.get(name).extra
    declared: Any = extra.get("tasks", ({"id": name},))
    tasks = declared if isinstance(declared, tuple) else declared(**(arguments or {}))
    return tuple({**task, **asks_of(name)} for task in tasks)
