"""Finds values of a recipe that its base, a preset or the schema gives anyway: a recipe says only what differs."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vlmrl.config import tree
from vlmrl.config.explain import element, models, tags
from vlmrl.config.layers import read_base, read_preset
from vlmrl.config.schema import Config
from vlmrl.config.tree import Node
from vlmrl.errors import ConfigError


def repeated_defaults(path: Path) -> list[str]:
    """Values of a recipe that its base, a preset or the schema gives anyway, as `file:line: key: ...`. A recipe says only what differs."""
    problems: list[str] = []
    root = tree.read(path, problems)
    base = read_base(path, root, problems)
    if problems:
        raise ConfigError(problems)
    body = Node({k: v for k, v in (root.mapping or {}).items() if k != "base"}, root.origin)
    return _repeated(Config, body, base, "", path)


def _repeated(model: type[BaseModel], node: Node, base: Node | None, path: str, recipe: Path) -> list[str]:
    out: list[str] = []
    below = (base.mapping or {}) if base is not None else {}
    for key, child in (node.mapping or {}).items():
        info = model.model_fields.get(key)
        if info is None:
            continue  # an argument of a method; its defaults are in a signature
        where, value = f"{path}{key}", child.plain()
        if key in below and below[key].plain() == value:
            said_by = "preset" if path.startswith("stages.") else "base"
            out.append(f"{child.origin}: {where}: {value!r} is what the {said_by} says already")
        elif key not in below and not info.is_required() and _default(info) == value:
            out.append(f"{child.origin}: {where}: {value!r} is the default")
        for inner in _inner(info.annotation, child):
            under = below.get(key) if child.items is None else read_preset(recipe, inner[1], where, [])
            out += _repeated(inner[0], inner[1], under, f"{where}.", recipe)
    return out


def _inner(annotation: Any, node: Node) -> list[tuple[type[BaseModel], Node]]:
    """The models within a field, each with its part of the tree."""
    if node.items is None:
        return [(model, node) for model in models(annotation)[:1] if node.mapping is not None]
    by_kind, options = tags(annotation), models(element(annotation))
    out: list[tuple[type[BaseModel], Node]] = []
    for item in node.items:
        kind = (item.mapping or {}).get("kind")
        model = by_kind.get(kind.value) if kind is not None else next(iter(options), None)
        if model is not None and item.mapping is not None:
            out.append((model, item))
    return out


def _default(info: FieldInfo) -> Any:
    """A field's default as YAML would hold it."""
    return _yaml(info.get_default(call_default_factory=True))


def _yaml(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_yaml(v) for v in typing.cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value
