"""The registries of this package's methods out of a kept file, for a check of a recipe's names and arguments, which needs no torch.

`vlmrl check RECIPE --no-data` asks of a method what its registration says: arguments with their types, and what it declares about its
neighbours (`vlmrl.config.combinations`). That does not change between two edits of the package. Functions in a registration (rules of a
method, and the method itself) are imported when they are called. A recipe with plug-ins, or with a name that is not in the file, asks the
registries themselves.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from vlmrl.config.methods import used
from vlmrl.config.schema import Config
from vlmrl.extras.tools import index
from vlmrl.registry import Entry, Parameter, Registry, load

PLAIN = (bool, int, float, str, NoneType)
TYPES: Mapping[str, Any] = {one.__name__: one for one in (*PLAIN, list, tuple, dict)} | {
    "Any": Any,
    "Literal": Literal,
    "Union": Union,
    "...": ...,
}
"""What annotations of arguments are made of, by the name in the file."""


def registries_of(config: Config) -> Mapping[str, Registry[Any]]:
    """Return the registries that a recipe's names are checked against: slot -> registry, as `vlmrl.methods.registries`.

    Raises:
        ConfigError: a plug-in cannot be imported.
        ModuleNotFoundError: torch is not installed, and no file is there yet.
    """
    from vlmrl.methods import registries

    if config.plugins or "torch" in sys.modules:  # with torch there is little to save, and others may have registered methods here
        return registries(config.plugins)
    found = _read()
    return found if all(method.name in found[slot].names() for _, slot, method in used(config)) else registries()


@cache
def _read() -> Mapping[str, Registry[Any]]:
    return known(index.kept(index.CACHE.expanduser(), gathered, name="registries"))


def gathered() -> Mapping[str, Any]:
    """Return what our registrations say, as JSON values: slot -> name -> description. One that cannot be written so is left out."""
    from vlmrl.methods import registries

    out: dict[str, dict[str, Any]] = {}
    for slot, registry in registries().items():
        out[slot] = {}
        for entry in (entry for entry in map(registry.get, registry.names()) if entry.ours):
            try:
                out[slot][entry.name] = _description(entry)
            except TypeError:
                continue
    return out


def known(found: Mapping[str, Any]) -> Mapping[str, Registry[Any]]:
    """Return the registries of such descriptions."""
    return {slot: _Known(slot, {name: _entry(slot, name, one) for name, one in part.items()}) for slot, part in found.items()}


class _Known(Registry[Any]):
    def __init__(self, slot: str, entries: Mapping[str, Entry[Any]]):
        super().__init__(slot)
        self._entries.update(entries)


def _description(entry: Entry[Any]) -> Mapping[str, Any]:
    called = {key: _place(value) for key, value in entry.extra.items() if inspect.isfunction(value)}
    return {
        "function": _place(entry.function),
        "about": inspect.getdoc(entry.function),
        "paper": entry.paper,
        "parameters": [[p.name, written(p.annotation), written(p.default), p.required] for p in entry.parameters.values()],
        "called": called,
        "extra": {key: written(value) for key, value in entry.extra.items() if key not in called},
        "module": entry.module,
    }


def _entry(slot: str, name: str, one: Mapping[str, Any]) -> Entry[Any]:
    arguments = [Parameter(key, read(kind), read(default), required) for key, kind, default, required in one["parameters"]]
    extra = {key: read(value) for key, value in one["extra"].items()}
    extra |= {key: Called(slot, name, key, place) for key, place in one["called"].items()}
    function = Called(slot, name, None, one["function"])
    function.__doc__ = one["about"]
    return Entry(name, function, one["paper"], {p.name: p for p in arguments}, extra, True, one["module"])


def written(value: Any) -> Any:
    """Return an annotation, or a value of a registration, as JSON.

    Raises:
        TypeError: it is made of something else than `TYPES` and plain values.
    """
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [written(one) for one in value]}
    if type(value) is dict:
        return {"dict": [[written(key), written(one)] for key, one in cast("dict[Any, Any]", value).items()]}
    names = [name for name, one in TYPES.items() if one is value]
    if names:
        return {"type": names[0]}
    origin = get_origin(value)
    if origin is None:
        raise TypeError(f"{value!r} cannot be kept")
    return {"of": [written(Union if origin is UnionType else origin), *(written(one) for one in get_args(value))]}


def read(value: Any) -> Any:
    """Return what `written` made this of."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = cast("dict[str, Any]", value).items()
    if kind == "type":
        return TYPES[held]
    if kind == "dict":
        return {read(key): read(one) for key, one in held}
    if kind == "of":
        origin, *arguments = map(read, held)
        return origin[tuple(arguments)]
    return TYPES[kind](map(read, held))


class Called:
    """Stands in for a function of a registration, or for the method itself (`key` None), until it is called."""

    def __init__(self, slot: str, name: str, key: str | None, place: str | None):
        self._slot, self._name, self._key, self._place = slot, name, key, place

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self._function()(*args, **more)

    def _function(self) -> Callable[..., Any]:
        found = None if self._place is None else load(self._place)
        if found is not None and "torch" not in sys.modules:
            return found
        # a rule that stands beside what computes may look into other registries, which only importing all of them fills
        from vlmrl.methods import registries

        entry = registries()[self._slot].get(self._name)
        return entry.function if self._key is None else entry.extra[self._key]


def _place(function: Any) -> str | None:
    """`module:name` of a function that a module has under its own name, else None."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is function else None
