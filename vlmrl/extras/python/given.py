"""Functions of a script or a notebook that a recipe names as rewards: `vlmrl.extras.python.given:<name>@<digest of their source>`.

They are in no file, so another process does not find them: the call that made the recipe has to be made again there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vlmrl.errors import ConfigError

_HELD: dict[str, Callable[..., Any]] = {}


def keep(name: str, function: Callable[..., Any]) -> str:
    """Hold a function under a name; where a recipe finds it. A later one of the same name and source takes its place."""
    _HELD[name] = function
    return f"{__name__}:{name}"


def __getattr__(name: str) -> Any:
    if "@" not in name:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if name not in _HELD:
        raise ConfigError(
            f"reward '{name.partition('@')[0]}' is a function of a script or a notebook: make the same call of vlmrl.grpo there again, or "
            "put the function into a module, which a recipe can name"
        )

    @functools.wraps(_HELD[name])
    def latest(*args: Any, **kwargs: Any) -> Any:
        return _HELD[name](*args, **kwargs)

    return latest
