"""Plug-ins: Python modules that register methods, providers, kinds of stages, answer types, metrics, scorers or adapters when they are
imported.

A plug-in is code with full authority. Recipes, suites, tasks and command lines name them; rows and results never do.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.extras import METHODS

ADVICE = "; install it, run where its file is, or put its folder on PYTHONPATH"


def import_plugins(names: Sequence[str], where: str = "plugins") -> None:
    """Import modules in order, those that can be: installed ones, else those of the working folder. `where` prefixes errors.

    Raises:
        ConfigError: with every module that cannot be imported.
    """
    problems: list[str] = []
    for i, name in enumerate(names):
        try:
            _import(name)
        except ImportError as error:
            problems.append(f"{where}.{i}: cannot import '{name}': {error}{ADVICE}")
        except Exception as error:  # noqa: BLE001 (code of the user's: whatever it raises, its place is what helps)
            from vlmrl.raised import told

            problems.append(f"{where}.{i}: '{name}' raised {told(error)}")
    if problems:
        raise ConfigError(problems)


def import_methods(slot: str) -> None:
    """Import the methods of a slot that optional parts have."""
    import_package(METHODS[slot])


def import_package(name: str) -> None:
    """Import every module of a package of ours, so that each registers what it holds."""
    module = importlib.import_module(name)
    for info in pkgutil.walk_packages(module.__path__, f"{name}."):
        importlib.import_module(info.name)


def _import(name: str) -> None:
    """A program that pip installs, unlike `python -m`, does not look in the working folder. It is looked in last, and only for a module of
    that name, so that no file there takes the place of an installed package."""
    top = name.partition(".")[0]
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != top or here in sys.path or not (Path(here, f"{top}.py").is_file() or Path(here, top).is_dir()):
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        importlib.import_module(name)
