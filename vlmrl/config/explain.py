"""What is wrong with a tree, in words: pydantic's errors with file and line, expected type and the nearest known key."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Union, cast

from pydantic import BaseModel, ValidationError

from vlmrl.config import names, tree
from vlmrl.config.renamed import renamed
from vlmrl.config.schema import SECTIONS, Config, Method, StageBase, know_kinds
from vlmrl.config.tree import Node
from vlmrl.registry import nearest, type_name

_HALF = "; float16 overflows without a loss scaler, and none is here: use bfloat16, which has the range of float32"
_WHY_NOT: Mapping[tuple[str, str], str] = {("model.dtype", name): _HALF for name in ("float16", "fp16", "half")}
"""(key, value) that other trainers take -> why it is refused here and what to write instead."""
_RANGES = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short", "too_long", "finite_number"})


def check(root: Node, problems: list[str]) -> Config | None:
    """The config of a tree, or None with every problem appended to `problems`."""
    children = root.mapping or {}
    stages, plugins = children.get("stages"), children.get("plugins")
    found = [stage.mapping["kind"].value for stage in (stages.items if stages else None) or [] if stage.mapping and "kind" in stage.mapping]
    named = cast("list[object]", plugins.plain()) if plugins is not None and plugins.items is not None else []
    know_kinds(found, [name for name in named if isinstance(name, str)])
    _repair_kinds(root, problems)
    try:
        return Config.model_validate(root.plain())
    except ValidationError as error:
        for item in error.errors(include_url=False):
            problems += _explain(item, root)
        return None


def salvage(root: Node) -> Config | None:
    """The config without what pydantic refuses, so that everything else can still be checked; None where a required value is missing.

    Only for finding further problems: it is never run.
    """
    data = root.plain()
    for _ in range(64):
        try:
            return Config.model_validate(data)
        except ValidationError as error:
            found = error.errors()
            if not all(_drop(data, item["loc"], item["type"]) for item in found if item["type"] not in ("missing", "too_short")):
                return None
            if all(item["type"] in ("missing", "too_short") for item in found):
                return None
    return None


def _drop(data: Any, loc: tuple[int | str, ...], kind: str) -> bool:
    """Delete the value at a pydantic location; whether it was there. A wrong name is replaced by another one: much needs one."""
    holder: dict[Any, Any] | None = None
    key: int | str = ""
    here = data
    for part in loc:
        if isinstance(here, dict) and part in here:
            holder, key = cast("dict[Any, Any]", here), part
            here = holder[part]
        elif isinstance(here, list) and isinstance(part, int):
            holder = None
            here = cast("list[Any]", here)[part]
    if holder is None:
        return False
    if kind == names.ERROR:
        holder[key] = "-".join(str(part) for part in loc)
    else:
        del holder[key]
    return True


def _repair_kinds(root: Node, problems: list[str]) -> None:
    """Report a stage whose `kind` is wrong, and let a likely kind stand in, so that the stage's other problems show too."""
    kinds = SECTIONS
    expected = f"expected one of {', '.join(map(repr, kinds))}"
    stages = (root.mapping or {}).get("stages")
    for index, stage in enumerate((stages.items if stages else None) or []):
        children = stage.mapping
        if children is None:
            continue
        where, kind = _dotted(("stages", index), root), children.get("kind")
        if kind is None:
            problems.append(f"{stage.origin}: {where}.kind: missing, {expected}")
            typo = next((key for key in children if key not in _all_fields(kinds) and nearest(key, ["kind"])), None)
            if typo is not None:
                kind = children.pop(typo)
                problems.append(f"{kind.origin}: {where}.{typo}: unknown key '{typo}'{nearest(typo, ['kind'])}")
        elif kind.value not in list(kinds):
            hint = nearest(kind.value, list(kinds)) if isinstance(kind.value, str) else ""
            problems.append(f"{kind.origin}: {where}.kind: {expected}, got {_shown_value(kind.plain())}{hint}")
        if kind is None or kind.value not in list(kinds):
            likely = max(kinds, key=lambda k: sum(key in kinds[k].model_fields for key in stage.plain()))
            kind = Node(likely, stage.origin)
        children["kind"] = kind


def _explain(item: Any, root: Node) -> list[str]:
    """One pydantic error in our words: where, what is wrong, what was expected, what was probably meant."""
    loc, kind = tuple(item["loc"]), item["type"]
    if kind == "too_short" and loc and _given(loc, root):
        return []  # the items are there and wrong; their own problems are reported
    if kind == "missing" and loc and isinstance(loc[-1], int):
        loc, kind = loc[:-1], "too_few"
    node, parent = _find(loc, root), _find(loc[:-1], root)
    where, origin, key = _dotted(loc, root), (node or parent or root).origin, str(loc[-1])
    model, annotation = _typed(loc, root)
    if kind == "extra_forbidden":
        known = list(model.model_fields) if model is not None else []
        known += ["base"] if model is Config else []
        now = renamed(model.__name__, key) if model is not None else None
        if now is not None:
            return [f"{origin}: {where}: '{key}' {now}"]
        return [f"{origin}: {where}: unknown key '{key}'{nearest(key, known)} (known: {', '.join(known)})"]
    if kind == "missing":
        out = [f"{origin}: {where}: missing, expected {shown(annotation)}"]
        if model is not None and issubclass(model, Method):
            # Methods take any key here, so a misspelt `name` would otherwise not be pointed at.
            extra = {k: v for k, v in ((parent.mapping if parent else None) or {}).items() if k not in model.model_fields}
            out += [
                f"{v.origin}: {_dotted(loc[:-1], root)}.{k}: unknown key '{k}'{hint}"
                for k, v in extra.items()
                if (hint := nearest(k, [key]))
            ]
        return out
    if kind == names.ERROR:
        return [f"{origin}: {where}: {item['msg']}"]
    value = node.plain() if node is not None else item["input"]
    if kind in _RANGES and not isinstance(value, list):
        return [f"{origin}: {where}: {item['msg'].replace('Input should', 'must')}, got {_shown_value(value)}"]
    options = [str(a) for a in typing.get_args(annotation)] if typing.get_origin(annotation) is typing.Literal else []
    hint = (_WHY_NOT.get((where, value)) or nearest(value, options)) if isinstance(value, str) else ""
    return [f"{origin}: {where}: expected {shown(annotation)}, got {_shown_value(value)}{hint}"]


def _shown_value(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def shown(annotation: Any) -> str:
    """How a field's type is shown: as `registry.type_name`, with YAML's words for lists and mappings."""
    annotation = _plain(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Method):
        return "a method such as {name: ...}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = list(annotation.model_fields)
        return f"a mapping with {', '.join(fields[:8])}{', ...' if len(fields) > 8 else ''}"
    if origin is tuple:
        return f"a list of {shown(args[0])}" if args[-1] is Ellipsis else f"a list of {len(args)}: {', '.join(map(shown, args))}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(shown, args)))
    return type_name(annotation)


# ---- walking tree and schema together -----------------------------------------------------------------------------------


def _plain(annotation: Any) -> Any:
    """Without `Annotated`."""
    return _plain(typing.get_args(annotation)[0]) if typing.get_origin(annotation) is Annotated else annotation


def _members(annotation: Any) -> list[Any]:
    """The alternatives of a union, or the type itself."""
    annotation = _plain(annotation)
    union = typing.get_origin(annotation) in (Union, types.UnionType)
    return [m for a in typing.get_args(annotation) for m in _members(a)] if union else [annotation]


def models(annotation: Any) -> list[type[BaseModel]]:
    return [m for m in _members(annotation) if isinstance(m, type) and issubclass(m, BaseModel)]


def _field_type(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[name].annotation


def element(annotation: Any) -> Any:
    """The type of a list's items; None for what is no list."""
    args = [typing.get_args(m) for m in _members(annotation) if typing.get_origin(m) is tuple]
    return args[0][0] if args else None


def tags(annotation: Any) -> dict[str, type[BaseModel]]:
    """`kind` -> model, for a list of stages; empty for other lists."""
    return dict(SECTIONS) if StageBase in models(element(annotation)) else {}


def _all_fields(kinds: Mapping[str, type[BaseModel]]) -> set[str]:
    return {name for model in kinds.values() for name in model.model_fields}


def _typed(loc: tuple[int | str, ...], root: Node) -> tuple[type[BaseModel] | None, Any]:
    """The model that holds the last part of a pydantic location, and the type of that part."""
    model: type[BaseModel] | None = None
    annotation: Any = Config
    for place, part in enumerate(loc):
        if isinstance(part, int):
            by_kind = tags(annotation)
            model, annotation = None, element(annotation)
            node = _find(loc[: place + 1], root) if by_kind else None
            if node is not None and node.mapping is not None and "kind" in node.mapping:
                annotation = by_kind.get(str(node.mapping["kind"].value))
            continue
        model = next(iter(models(annotation)), None)
        annotation = _field_type(model, part) if model is not None and part in model.model_fields else None
    return model, annotation


def _find(loc: tuple[int | str, ...], root: Node) -> Node | None:
    node: Node | None = root
    for part in loc:
        if node is None:
            return None
        if isinstance(part, int):
            node = node.items[part] if node.items is not None and part < len(node.items) else None
        else:
            node = (node.mapping or {}).get(part)
    return node


def _given(loc: tuple[int | str, ...], root: Node) -> bool:
    node = _find(loc, root)
    return node is not None and bool(node.items)


def _dotted(loc: tuple[int | str, ...], root: Node) -> str:
    """A pydantic location as an override would write it, with list items by name."""
    node: Node | None = root
    out: list[str] = []
    for part in loc:
        if isinstance(part, int):
            items = (node.items if node is not None else None) or []
            out.append(tree.segment([item.name for item in items], part) if part < len(items) else str(part))
            node = items[part] if part < len(items) else None
        else:
            out.append(part)
            node = (node.mapping or {}).get(part) if node is not None else None
    return ".".join(out)


def default_methods(model: type[BaseModel]) -> dict[str, str]:
    """Key -> name of the default method, for every field of the schema that holds one method."""
    out: dict[str, str] = {}
    for name, info in model.model_fields.items():
        default = info.get_default()
        if isinstance(default, Method):
            out[name] = default.name
        for inner in [*models(info.annotation), *models(element(info.annotation)), *tags(info.annotation).values()]:
            out |= default_methods(inner)
    return out
