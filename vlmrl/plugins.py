"""Plug-ins: Python modules that register methods, providers, kinds of stages, answer types, metrics, scorers or adapters when they are
imported.

A plug-in is code with full authority. Recipes, suites, tasks and command lines name them; rows and results never do.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from vlmrl.errors import ConfigError


def import_plugins(names: Sequence[str], where: str = "plugins") -> None:
    """Import modules in order, those that can be. `where` prefixes errors.

    Raises:
        ConfigError: with every module that cannot be imported.
    """
    problems: list[str] = []
    for i, name in enumerate(names):
        try:
            importlib.import_module(name)
        except ImportError as error:
            problems.append(f"{where}.{i}: cannot import '{name}': {error}; install it or put its folder on PYTHONPATH")
    if problems:
        raise ConfigError(problems)
