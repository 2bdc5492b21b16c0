"""The page of recipe keys, from the pydantic schema: type, default, bounds and meaning of each key, and the kinds of stage that have it."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scripts.docs_site.marks import plain, table
from vlmrl.config.methods import SLOTS
from vlmrl.config.schema import SECTIONS, Config, Method, StageBase

PAGE = "reference/recipe.md"
BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "min_length": "items >=", "max_length": "items <="}


@dataclass(frozen=True)
class Key:
    """One key of a recipe."""

    path: str
    """Dotted, within its section of the recipe; of a stage without `stages.NAME`."""
    kind: str
    default: str
    bounds: str
    meaning: str


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The sections in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in models_of(inner)]


def shown_type(annotation: Any) -> str:
    """How a type is written on the page: `int`, `one of a, b`, `list of str`, `method`."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return shown_type(args[0])
    if origin is Literal:
        return "one of " + ", ".join(f"`{one}`" for one in args)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if one is type(None) else shown_type(one) for one in args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return f"list of {shown_type(args[0])}"
    if origin is tuple:
        return f"list of {len(args)} {shown_type(args[0])}"
    if origin is dict:
        return f"mapping of {shown_type(args[0])} to {shown_type(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Method):
        return "method"
    if isinstance(annotation, type) and issubclass(annotation, StageBase):
        return "stage"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return getattr(annotation, "__name__", str(annotation))


def bounds_of(field: FieldInfo) -> list[str]:
    """Bounds of a field's value, also of a value inside of a union or a list: `> 0`."""

    def within(annotation: Any) -> Iterator[Any]:
        if typing.get_origin(annotation) is Annotated:
            for one in annotation.__metadata__:
                yield from one.metadata if isinstance(one, FieldInfo) else (one,)
        for inner in typing.get_args(annotation):
            yield from within(inner)

    out: list[str] = []
    for one in (*field.metadata, *within(field.annotation)):
        out += [f"{sign} {getattr(one, name):g}" for name, sign in BOUNDS.items() if getattr(one, name, None) is not None]
    return list(dict.fromkeys(out))


def shown_default(field: FieldInfo) -> str:
    """The default as a recipe writes it; `required` where there is none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    if isinstance(value, Method):
        return f"`{value.name}`"
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None:
        return "none"
    if isinstance(value, tuple):
        value = [one.name if isinstance(one, Method) else one for one in value]
    return f"`{json.dumps(value)}`"


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """All keys of a section, those of inner sections behind their own."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = [one for one in models_of(field.annotation) if one is not StageBase]
        described = field.description or next((one.__doc__ for one in inner if one.__doc__), None) or ""
        meaning = re.sub(r"docs/[\w/-]+\.md", r"`\g<0>`", plain(" ".join(described.split())))
        slot = "strategy" if path == "rollout.strategy" else SLOTS.get(path)
        if slot is not None:
            meaning += f" ([methods](methods/{slot}.md))"
        yield Key(path, shown_type(field.annotation), shown_default(field), ", ".join(bounds_of(field)), meaning)
        for one in inner:
            yield from keys_of(one, f"{path}.")


def stage_kinds() -> dict[str, tuple[Key, list[str]]]:
    """Key of a stage -> it, and the kinds that have it."""
    out: dict[str, tuple[Key, list[str]]] = {}
    for kind, section in SECTIONS.items():
        if section.__module__.startswith("vlmrl."):
            for key in keys_of(section):
                out.setdefault(key.path, (key, []))[1].append(kind)
    return out


def _rows(keys: list[Key]) -> list[tuple[str, ...]]:
    return [(f"`{key.path}`", key.kind, key.default, f"`{key.bounds}`" if key.bounds else "", key.meaning) for key in keys]


def page() -> str:
    """The whole page."""
    head = ("key", "type", "default", "bounds", "what it is")
    out = [
        "# Recipe keys",
        "",
        "Every key of a recipe. A key of a stage stands below its entry of `stages`, and an override names the stage: "
        "`stages.rl.optim.lr=1e-6`. `vlmrl check --print` shows the values of a recipe and where each is from. A *method* is a mapping "
        "with `name` and the method's own arguments. Two keys stand for others and are in no table: `base` of the recipe "
        "(`docs/install.md`), and `algorithm` of a stage (`docs/methods.md`).",
        "",
    ]
    for name, field in Config.model_fields.items():
        if name == "stages":
            continue
        sections = models_of(field.annotation)
        out += [f"## {name}", "", plain(field.description or (sections[0].__doc__ or "" if sections else "")), ""]
        keys = list(keys_of(sections[0], f"{name}.")) if sections else [next(k for k in keys_of(Config) if k.path == name)]
        out += [*table(head, _rows(keys)), ""]
    every = stage_kinds()
    kinds = [kind for kind, section in SECTIONS.items() if section.__module__.startswith("vlmrl.")]
    out += ["## stages", "", f"A list; each has a `kind`: {', '.join(f'`{kind}`' for kind in kinds)}, or one of a plug-in.", ""]
    groups: dict[tuple[str, ...], dict[str, list[Key]]] = {}
    for key, found in every.values():
        groups.setdefault(tuple(found), {}).setdefault(key.path.partition(".")[0] if "." in key.path else "", []).append(key)
    for found, parts in sorted(groups.items(), key=lambda item: -len(item[0])):
        out += [f"### {'every kind' if len(found) == len(kinds) else ' and '.join(found)}", "", _kinds_line(list(found)), ""]
        for part in sorted(parts):
            out += [*([f"#### {part}", ""] if part else []), *table(head, _rows(parts[part])), ""]
    return "\n".join(out)


def _kinds_line(found: list[str]) -> str:
    return f"Keys of stages of kind {', '.join(f'`{kind}`' for kind in found)}."
