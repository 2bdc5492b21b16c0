"""All registries, with everything registered: imports the packages that hold methods, and the plug-ins that a recipe names.

Imported by `cli` and `train` only; this is where torch comes in when a recipe is checked.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.config.methods import check_methods
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.registry import Registry

PACKAGES = ("vlmrl.algo", "vlmrl.rewards", "vlmrl.sampling", "vlmrl.rollout.strategy")
"""Every module in these is imported, so that adding a method is adding a file."""


def registries(plugins: Sequence[str] = ()) -> dict[str, Registry[Any]]:
    """Slot -> registry, after importing our methods and the given plug-ins (modules that register theirs).

    A plug-in is code with full authority; only a recipe's author can name one.

    Raises:
        ConfigError: a plug-in cannot be imported.
    """
    for package in PACKAGES:
        _import_all(package)
    for i, name in enumerate(plugins):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"plugins.{i}: cannot import '{name}': {error}; install it or put its folder on PYTHONPATH") from error
    from vlmrl import protocols
    from vlmrl.algo import registries as algo

    found: list[Registry[Any]] = [
        algo.advantage,
        algo.credit,
        algo.policy_loss,
        algo.reducer,
        algo.kl_estimator,
        algo.shape,
        algo.select,
        protocols.reward,
        protocols.sampler,
        protocols.strategy,
    ]
    return {registry.slot: registry for registry in found}


def _import_all(package: str) -> None:
    module = importlib.import_module(package)
    for info in pkgutil.walk_packages(module.__path__, f"{package}."):
        importlib.import_module(info.name)


def method_problems(config: Config) -> list[str]:
    """Every wrong method name and argument of a config; for `config.load.load(also=...)`."""
    return check_methods(config, registries(config.plugins))


def require_methods(config: Config) -> Mapping[str, Registry[Any]]:
    """Pass 2 as training needs it: the registries, after every method of the config has been checked against them.

    Raises:
        ConfigError: with every wrong name and argument.
    """
    found = registries(config.plugins)
    problems = check_methods(config, found)
    if problems:
        raise ConfigError(problems)
    return found
