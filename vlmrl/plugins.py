"""Plug-ins: Python modules that a recipe names and that register methods, providers and kinds of stages when they are imported."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from vlmrl.errors import ConfigError


def import_plugins(names: Sequence[str]) -> None:
    """Import them. A plug-in is code with full authority; only a recipe's author can name one.

    Raises:
        ConfigError: one cannot be imported.
    """
    for i, name in enumerate(names):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"plugins.{i}: cannot import '{name}': {error}; install it or put its folder on PYTHONPATH") from error
