"""Registries of named things. The keyword-only parameters of a registered function are its configuration schema.

    @advantage("grpo", paper="arXiv:2402.03300")
    def grpo(x: AdvantageInputs, *, epsilon: float = 1e-4) -> Tensor: ...

`bind("grpo", {"epsilon": 1e-6})` checks names and types against the signature and returns the function with its arguments.
Registering twice, or with an unannotated or undefaulted-by-accident parameter, is an error at import; an unknown name or
argument is an error when the recipe is loaded, with the nearest known name.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union

from vlmrl.extras import PROVIDES

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_PACKAGE = Path(__file__).parent


def nearest(name: str, known: Sequence[str]) -> str:
    """Write `; did you mean 'x'?` for an unknown name, or the empty string where none is near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


class _Place(str):
    """`module:attribute`."""


class Catalogue(MutableMapping[str, T]):
    """Things of one kind by name, in the order in which they were added: for what is no function of a recipe (answer types, layouts).

        BACKENDS: Catalogue[Attend] = Catalogue("backend", {"dense": dense}, {"flex": "vlmrl.policy.flex:flex"})

    What stands elsewhere is imported when it is first asked for: what most runs never use need not be read to follow one. What optional
    parts add to this kind (`vlmrl.extras.PROVIDES`) comes last. A name that is not there raises KeyError with what `problem` says.
    """

    def __init__(
        self,
        kind: str,
        here: Mapping[str, T] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        *,
        renamed: Mapping[str, str] | None = None,
    ):
        """`elsewhere`: name -> `module:attribute`; a test imports all of these. `renamed`: names of earlier versions and what they are
        called now."""
        self.kind = kind
        places = {**(elsewhere or {}), **PROVIDES.get(kind, {})}
        self._things: dict[str, Any] = {**(here or {}), **{name: _Place(place) for name, place in places.items()}}
        self._renamed = dict(renamed or {})

    def add(self, name: str, item: T) -> None:
        """Add a thing under a name; adding the same again changes nothing.

        Raises:
            ValueError: the name is taken by another thing.
        """
        if name in self and self[name] is not item:
            raise ValueError(f"{self.kind} '{name}' is registered twice")
        self[name] = item

    def problem(self, name: str) -> str | None:
        """Say what is wrong with a name, with the nearest known one or the one that replaced it; None where it is known."""
        if name in self:
            return None
        if name in self._renamed:
            return f"{self.kind} '{name}' is called '{self._renamed[name]}' now"
        return f"unknown {self.kind} '{name[:60]}'{nearest(name, list(self))} (known: {', '.join(self)})"

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise KeyError(self.problem(name))
        if isinstance(self._things[name], _Place):  # imported once, when it is first asked for
            self._things[name] = load(self._things[name])
        return self._things[name]

    def __setitem__(self, name: str, item: T) -> None:
        self._things[name] = item

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


def load(place: str) -> Any:
    """Import what `from module import attribute` gives, for `module:attribute`."""
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if hasattr(found, attribute) else importlib.import_module(f"{module}.{attribute}")


def type_name(annotation: Any) -> str:
    """Write an annotation as it is shown to users: `float`, `int or None`, `one of 'a', 'b'`."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in typing.get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(a) for a in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    if origin is not None:
        return str(annotation).replace("typing.", "")
    return getattr(annotation, "__name__", str(annotation))


def fits(value: Any, annotation: Any) -> bool:
    """Check whether a YAML value has the annotated type. A bool is not a number; an int is a float."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin is Literal:
        return any(value == a and type(value) is type(a) for a in args)  # or True would be 1
    if origin in (Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            return False
        items = typing.cast("Sequence[Any]", value)
        if origin is tuple and args and args[-1] is not Ellipsis:  # YAML has lists alone; a tuple says how long
            return len(items) == len(args) and all(fits(v, a) for v, a in zip(items, args, strict=True))
        return all(fits(v, args[0]) for v in items) if args else True
    if origin is dict:
        if not isinstance(value, dict):
            return False
        pairs = typing.cast("dict[Any, Any]", value).items()
        return all(fits(k, args[0]) and fits(v, args[1]) for k, v in pairs)
    if annotation in (int, float):
        return isinstance(value, int if annotation is int else int | float) and not isinstance(value, bool)
    return isinstance(annotation, type) and isinstance(value, annotation)


SHOWN = 50
"""Unknown keys of one place that are named; how many more there are is said."""


def first_of(problems: Sequence[str], where: str, further: int = 0) -> list[str]:
    """Take the first `SHOWN` problems of unknown keys, and a line that counts the others. `where` begins that line; `further` are those
    that `problems` does not hold."""
    further += max(0, len(problems) - SHOWN)
    return [*problems[:SHOWN], *([f"{where}: {further} more unknown key{'s' * (further > 1)}"] if further else [])]


@dataclass(frozen=True)
class Parameter:
    """One argument of a method."""

    name: str
    annotation: Any
    default: Any
    required: bool


def parameters(what: str, function: Callable[..., Any]) -> dict[str, Parameter]:
    """Read the keyword-only parameters of a function, by name: its configuration schema. `what` names it in messages.

    Raises:
        ValueError: one has no annotation, or `**` hides them.
    """
    asked = [p for p in inspect.signature(function).parameters.values() if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    # Only their annotations are looked up: with those of all arguments of all methods that is a tenth of the time of a check.
    annotated = types.SimpleNamespace(__annotations__={p.name: p.annotation for p in asked if p.annotation is not p.empty})
    hints = typing.get_type_hints(annotated, getattr(inspect.unwrap(function), "__globals__", None))
    out: dict[str, Parameter] = {}
    for parameter in asked:
        if parameter.kind is parameter.VAR_KEYWORD:
            raise ValueError(f"{what}: **{parameter.name} hides the schema; name the parameters")
        if parameter.name not in hints:
            raise ValueError(f"{what}: parameter '{parameter.name}' needs an annotation")
        required = parameter.default is parameter.empty
        out[parameter.name] = Parameter(parameter.name, hints[parameter.name], None if required else parameter.default, required)
    return out


def argument_problems(what: str, known: Mapping[str, Parameter], arguments: Mapping[str, Any], where: str) -> list[str]:
    """List everything wrong with giving a function these arguments; empty when it is fine. `where` prefixes each line."""
    takes = ", ".join(known) or "nothing"
    unknown = [key for key in arguments if key not in known]
    named = [f"{where}.{key}: unknown '{key}'{nearest(key, list(known))} ({what} takes: {takes})" for key in unknown[:SHOWN]]
    out = first_of(named, where, len(unknown[SHOWN:]))
    for key, value in arguments.items():
        if key in known and not fits(value, known[key].annotation):
            out.append(f"{where}.{key}: expected {type_name(known[key].annotation)}, got {type(value).__name__} {value!r}")
    return out + [f"{where}.{p.name}: missing, {what} needs it" for p in known.values() if p.required and p.name not in arguments]


@dataclass(frozen=True)
class Entry(Generic[F]):
    """One registered function."""

    name: str
    function: F
    paper: str | None
    """arXiv id or other citation; None for what needs none."""
    parameters: Mapping[str, Parameter]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ours: bool = False
    """Whether a file of this package registered it. What a plug-in or a script registers is not, whatever its module is called."""
    module: str = ""
    """The module whose code was running, so that another process knows the method after importing it. Code that is called later registers
    for its caller: a module that offers a function for this is not meant, the script or the cell that calls it is (`__main__`)."""

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    @property
    def proposed(self) -> bool:
        """Whether part of the method is our guess; the name says so."""
        return self.name.endswith("_proposed")


class Registry(Generic[F]):
    """Named functions of one slot (`advantage`, `policy_loss`, `reward`, ...)."""

    def __init__(self, slot: str):
        self.slot = slot
        self._entries: dict[str, Entry[F]] = {}

    def __call__(self, name: str, *, paper: str | None = None, **extra: Any) -> Callable[[F], F]:
        """Register the decorated function under `name`. Whose it is, the file says that calls this (`Entry.ours`).

        Args:
            paper: arXiv id or other citation; None for what needs none.
            extra: what the trainer should know of the method (`needs`, `remembers`, ...), by the slot's own keys.
        """
        caller: types.FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        ours = Path(caller.f_code.co_filename).is_relative_to(_PACKAGE)
        # the function may be made by a helper: the module whose code runs is what another process has to import
        while caller is not None and caller.f_code.co_name != "<module>":
            caller = caller.f_back
        module = "" if caller is None else caller.f_globals.get("__name__", "")

        def register(function: F) -> F:
            if name in self._entries:
                raise ValueError(f"{self.slot} '{name}' is registered twice")
            if not inspect.getdoc(function):
                raise ValueError(f"{self.slot} '{name}' needs a docstring")
            self._entries[name] = Entry(name, function, paper, parameters(f"{self.slot} '{name}'", function), extra, ours, module)
            return function

        return register

    def names(self) -> list[str]:
        return sorted(self._entries)

    def get(self, name: str) -> Entry[F]:
        """Find the entry of that name.

        Raises:
            KeyError: with the nearest known name.
        """
        if name not in self._entries:
            raise KeyError(f"unknown {self.slot} '{name}'{nearest(name, self.names())} (known: {', '.join(self.names())})")
        return self._entries[name]

    def problems(self, name: str, arguments: Mapping[str, Any], where: str) -> list[str]:
        """List everything wrong with using `name` with these arguments; empty when it is fine. `where` prefixes each line."""
        if name not in self._entries:
            return [f"{where}.name: unknown {self.slot} '{name}'{nearest(name, self.names())} (known: {', '.join(self.names())})"]
        return argument_problems(f"{self.slot} '{name}'", self._entries[name].parameters, arguments, where)

    def bind(self, name: str, arguments: Mapping[str, Any] | None = None) -> F:
        """Fill in a function's arguments.

        Raises:
            KeyError, TypeError: what `problems` finds.
        """
        arguments = dict(arguments or {})
        entry = self.get(name)
        wrong = self.problems(name, arguments, f"{self.slot}.{name}")
        if wrong:
            raise TypeError("\n".join(wrong))
        return typing.cast(F, functools.partial(entry.function, **arguments))
