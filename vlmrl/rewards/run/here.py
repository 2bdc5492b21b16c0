"""Rewards that no worker process can run: a worker imports modules, so what a script or a notebook registers is known in the trainer only,
and what asks a server has time limits of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.protocols import reward as registry
from vlmrl.registry import Entry, Registry


def stays_here(entry: Entry[Any], isolate: bool | None) -> bool:
    """Check whether a reward must run in the trainer's process.

    Raises:
        ConfigError: it must, and the recipe wants a worker for it.
    """
    why = _why_here(entry)
    if why is not None and isolate:
        raise ConfigError(why)
    return why is not None


def isolated(used: Iterable[tuple[str, str, Any]], rewards: Registry[Any] = registry) -> list[str]:
    """List where a recipe wants a worker for such a reward. `used`: place, slot and method of everything that the recipe names.

    Returns:
        A line for each, with its place and the reason why no worker can have it; empty where all can.
    """
    known = [(where, rewards.get(m.name)) for where, slot, m in used if slot == "reward" and m.isolate and m.name in rewards.names()]
    return [f"{where}.isolate: {why}" for where, entry in known if (why := _why_here(entry)) is not None]


def here_notes(stage: str, rewards: Iterable[Any]) -> list[str]:
    """Describe in a line the rewards of a stage (`rewards` of the recipe) that would run in a worker if it knew them, where the recipe does
    not say itself that they run in this process.

    Returns:
        One line for all of them, or none.
    """
    named = [registry.get(method.name) for method in rewards if method.isolate is None]
    names = [f"'{entry.name}'" for entry in named if not entry.ours and entry.extra.get("worker", True) and not _imported(entry)]
    if not names:
        return []
    what, verb, them = ("reward", "runs", "it") if len(names) == 1 else ("rewards", "run", "them")
    return [
        f"stage '{stage}': {what} {', '.join(names)} {verb} in the trainer's process, without a deadline: no module that a worker could "
        f"import registers {them}; one that 'plugins' names would"
    ]


def findable(name: str) -> bool:
    """Check whether a fresh interpreter with this one's path finds a module. `importlib.util.find_spec` would say what is loaded."""
    folders: Any = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        whole = ".".join(parts[:end])
        specs = (finder.find_spec(whole, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is None or (spec.submodule_search_locations is None and end < len(parts)):
            return False
        folders = spec.submodule_search_locations
    return True


def _imported(entry: Entry[Any]) -> bool:
    """Whether importing a module registers a reward: neither a script nor a cell of a notebook (`__main__`), nor a text that was run."""
    return entry.ours or (entry.module not in ("", "__main__") and findable(entry.module))


def _why_here(entry: Entry[Any]) -> str | None:
    """Why no worker can run a reward, and what to do about it."""
    if entry.extra.get("service", False):
        return f"reward '{entry.name}' asks a server and keeps its own time limits; remove 'isolate: true'"
    if _imported(entry):
        return None
    whose = "a script or a notebook" if entry.module == "__main__" else "no module that can be imported"
    return (
        f"reward '{entry.name}' is registered by {whose}, so a worker process does not know it; remove 'isolate: true' to run it in the "
        "trainer's process, or put it into a module and name that under 'plugins'"
    )
