"""Rewards of a call as those of a recipe: names, functions, and either with a weight.

A function of a module that can be imported is named by its place and runs in a worker, as one that a recipe names. Any other is held by
this process (`given`) and runs in it. How it is called follows from its parameters; the reward `python` does the calling.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.python import given
from vlmrl.protocols import reward as registry
from vlmrl.rewards.run.here import findable

FORMS = (
    "(group, ctx) is ours, (completions, **columns) that of TRL, (data_source, solution_str, ground_truth, extra_info) that of verl, "
    "(reward_inputs) that of EasyR1"
)


def of_recipe(given_rewards: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The `rewards` of a stage, and what there is to say of them.

    Args:
        given_rewards: one or a list of: the name of a reward, a function, (either, weight), or a mapping as in a recipe, whose `function`
            may be one.

    Raises:
        ConfigError: something else, or a function whose form cannot be told.
    """
    one = isinstance(given_rewards, str | tuple | Mapping) or callable(given_rewards)
    items: Any = [given_rewards] if one else given_rewards
    if not isinstance(items, list | tuple):
        raise ConfigError(
            f"reward: {_shown(items)}; give a function, the name of a reward, or a list of such, each with a weight or without"
        )
    out: list[dict[str, Any]] = []
    for item in items:
        method = _method(item)
        if (label := method.get("label")) is not None:
            taken = {one.get("label", one.get("name")) for one in out}
            method["label"] = next(name for name in (label, *(f"{label}_{n}" for n in range(2, 99))) if name not in taken)
        out.append(method)
    here = [f"'{method['label']}'" for method in out if str(method.get("function", "")).startswith(given.__name__)]
    what, verb, them = ("reward", "runs", "it") if len(here) == 1 else ("rewards", "run", "them")
    note = f"{what} {', '.join(here)} {verb} in this process, without a deadline: no module that a worker could import has {them}"
    return out, [note] if here else []


def _method(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"name": item}
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], int | float):
        return _method(item[0]) | {"weight": float(item[1])}
    if isinstance(item, Mapping):
        function = item.get("function")
        called = _function(function, item.get("form")) if callable(function) else {}
        return called | {key: value for key, value in item.items() if not (called and key == "function")}
    if callable(item):
        return _function(item, None)
    raise ConfigError(f"reward: {_shown(item)}; give a function, the name of a reward, or (either, weight)")


def _function(function: Callable[..., Any], form: str | None) -> dict[str, Any]:
    """The reward that calls a function."""
    known = next((name for name in registry.names() if registry.get(name).function is function), None)
    if known is not None:
        return {"name": known}
    named = function.func if isinstance(function, functools.partial) else function
    label = re.sub(r"\W+", "_", getattr(named, "__name__", type(named).__name__)).strip("_")[:48]
    label = "reward" if label in ("", "lambda") else label
    form = form or form_of(function, label)
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if module != "__main__" and findable(module) and _found(module, name) is function:
        return {"name": "python", "label": label, "function": f"{module}:{name}", "form": form}
    place = given.keep(f"{label}@{source_digest(function)}", function)
    return {"name": "python", "label": label, "function": place, "form": form, "isolate": False}


def form_of(function: Callable[..., Any], label: str) -> str:
    """How a function wants to be called, by its parameters.

    Raises:
        ConfigError: they are of no known form.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    if "solution_str" in names:
        return "verl"
    if "completions" in names or [p.kind for p in parameters.values()] == [inspect.Parameter.VAR_KEYWORD]:
        return "trl"
    if names[:1] == ["reward_inputs"]:
        return "easyr1"
    if names[:1] == ["group"] and len(names) >= 2:
        return "ours"
    raise ConfigError(
        f"reward '{label}': parameters ({', '.join(names)}) are of no known form: {FORMS}; or say it: "
        f"{{'function': {label}, 'form': 'trl'}}"
    )


def source_digest(function: Callable[..., Any]) -> str:
    """Digest of what a function is made of: its source, its defaults, and plain values that it has from around it. What it calls is not
    in it."""
    parts: list[str] = []
    while isinstance(function, functools.partial):
        parts.append(_plain((function.args, dict(function.keywords))))
        function = function.func
    inner: Any = inspect.unwrap(getattr(function, "__func__", function))
    code: CodeType | None = getattr(inner, "__code__", None)
    try:
        if getattr(inner, "__name__", "") == "<lambda>":
            raise OSError("the line of a lambda holds what stands around it as well")
        parts.append(textwrap.dedent(inspect.getsource(inner if code is not None else type(inner))))
    except (OSError, TypeError):  # text that was run, and no file of it
        parts.append(_compiled(code) if code is not None else type(inner).__qualname__)
    if code is not None:
        cells = zip(code.co_freevars, inner.__closure__ or (), strict=True)
        parts += [f"{name}={_plain(cell.cell_contents)}" for name, cell in cells]
        parts.append(_plain((inner.__defaults__, inner.__kwdefaults__)))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _compiled(code: CodeType) -> str:
    inner = [_compiled(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _plain(value: Any) -> str:
    """A value as text; of objects the type alone, since their text may hold an address."""
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_plain(k)}: {_plain(v)}' for k, v in value.items())}}}"
    return type(value).__qualname__


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _shown(value: Any) -> str:
    return f"got {type(value).__name__} {value!r:.80}"
