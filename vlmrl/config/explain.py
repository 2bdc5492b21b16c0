"""What is wrong with a tree, in words: pydantic's errors with file and line, expected type and the nearest known key."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, cast

from pydantic import BaseModel, ValidationError

from vlmrl.config import names, tree
from vlmrl.config.layers import PRESET
from vlmrl.config.renamed import renamed
from vlmrl.config.schema import SECTIONS, Config, Method, StageBase, know_kinds
from vlmrl.config.tree import Node
from vlmrl.config.where import located
from vlmrl.errors import ConfigError
from vlmrl.registry import SHOWN, first_of, nearest, type_name

_HALF = "; float16 overflows without a loss scaler, and none is here: use bfloat16, which has the range of float32"
_WHY_NOT: Mapping[tuple[str, str], str] = {("model.dtype", name): _HALF for name in ("float16", "fp16", "half")}
"""(key, value) that other trainers take -> why it is refused here and what to write instead."""
_UNKNOWN = "extra_forbidden"
"""Pydantic's word for an unknown key."""
_RANGES = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short", "too_long", "finite_number"})


def check(root: Node, problems: list[str]) -> Config | None:
    """The config of a tree, or None with every problem appended to `problems`."""
    children = root.mapping or {}
    stages, plugins = children.get("stages"), children.get("plugins")
    found = [stage.mapping["kind"].value for stage in (stages.items if stages else None) or [] if stage.mapping and "kind" in stage.mapping]
    named = cast("list[object]", plugins.plain()) if plugins is not None and plugins.items is not None else []
    try:
        know_kinds(found, [name for name in named if isinstance(name, str)])
    except ConfigError as error:  # a plug-in that cannot be imported; the stages that need it are checked as others
        problems += [located(problem, root) for problem in error.problems]
    _repair_kinds(root, problems)
    try:
        return Config.model_validate(root.plain())
    except ValidationError as error:
        unknown: list[str] = []
        further = 0
        for item in error.errors(include_url=False):
            if item["type"] != _UNKNOWN:
                problems += _explain(item, root)
            elif len(unknown) < SHOWN:
                unknown += _explain(item, root)
            else:
                further += 1
        problems += first_of(unknown, root.origin, further)  # a file that is no recipe may have thousands
        return None


Guessed = frozenset[tuple[str, str]]
"""Where a value is not the recipe's: the beginning of the paths below its stage (empty outside of stages), and its key."""


def salvage(root: Node) -> tuple[Config | None, Guessed]:
    """The config without what pydantic refuses and with stand-ins for what is missing, so that everything else can still be checked;
    and the keys whose values are not the recipe's. None where too little is there, such as no stage.

    Only for finding further problems: it is never run.
    """
    data, guessed = root.plain(), set[tuple[str, str]]()
    for _ in range(256):
        try:
            return Config.model_validate(data), frozenset(guessed)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            unknown = [_drop(data, tuple(item["loc"])) for item in errors if item["type"] == _UNKNOWN]
            # The others one at a time: the place of a list item changes when one before it is taken out.
            if not any(unknown) and not any(_mend(data, tuple(item["loc"]), item["type"], root, guessed) for item in errors):
                break
    return None, frozenset(guessed)


def is_guessed(problem: str, guessed: Guessed) -> bool:
    """Whether a problem names a key whose value is not the recipe's."""
    return any(problem.startswith(scope) and re.search(rf"(?<!\w){re.escape(key)}(?!\w)", problem) for scope, key in guessed)


def _mend(data: Any, loc: tuple[int | str, ...], kind: str, root: Node, guessed: set[tuple[str, str]]) -> bool:
    """Take out what is wrong at a pydantic location, or put in what is missing there; whether anything changed."""
    if kind == "missing" and not isinstance(loc[-1], int):
        model, annotation = _typed(loc, root)
        if model is not None and not issubclass(model, Method) and (value := _stand_in(annotation, loc)) is not None:
            holder = _reach(data, loc[:-1])
            if not isinstance(holder, dict):
                return False
            cast("dict[Any, Any]", holder)[loc[-1]] = value
            if value == []:
                _note(guessed, data, loc, str(loc[-1]))
            return True
    if kind == "missing":
        loc = loc[:-1]  # a method without a name, or a list of too few
    if len(loc) < 3 and loc[:1] in ((), ("stages",)):
        return False  # a recipe without stages, or a stage that is none
    key = next((str(part) for part in reversed(loc) if not isinstance(part, int)), "")
    if key != "name":
        _note(guessed, data, loc, key)
    return _drop(data, loc)


def _note(guessed: set[tuple[str, str]], data: Any, loc: tuple[int | str, ...], key: str) -> None:
    """Remember that the value of a key is not the recipe's."""
    if loc[0] != "stages" or len(loc) < 2:
        guessed.add(("", key))
        return
    stage = _reach(data, loc[:2])
    name = cast("dict[str, object]", stage).get("name") if isinstance(stage, dict) else None
    guessed |= {(f"stages.{name}.", key), (f"stages[{loc[1]}] ", key)}


def _stand_in(annotation: Any, loc: tuple[int | str, ...]) -> Any:
    """A value of a type for a required field; None where there is none that says nothing."""
    if annotation is str:
        return str(loc[-2]) if len(loc) > 1 else "-"  # a stage is called by its number
    if element(annotation) is not None:
        return None if tags(annotation) else []
    if models(annotation):
        fields = models(annotation)[0].model_fields
        return {name: _stand_in(info.annotation, (*loc, name)) for name, info in fields.items() if info.is_required()}
    return 1 if _plain(annotation) is int else None


def _reach(data: Any, loc: tuple[int | str, ...]) -> Any:
    """What lies at a pydantic location of plain values, or None."""
    for part in loc:
        if isinstance(data, dict) and part in data:
            data = cast("dict[Any, Any]", data)[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(cast("list[Any]", data)):
            data = cast("list[Any]", data)[part]
        else:
            return None
    return data


def _drop(data: Any, loc: tuple[int | str, ...]) -> bool:
    """Delete the value at a pydantic location, or the nearest one around it that is there; whether there was one."""
    for end in range(len(loc), 0, -1):
        holder, key = _reach(data, loc[: end - 1]), loc[end - 1]
        if isinstance(holder, dict) and key in holder:
            del holder[key]
            return True
        if isinstance(holder, list) and isinstance(key, int) and key < len(cast("list[Any]", holder)):
            del holder[key]
            return True
    return False


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
    if kind == _UNKNOWN:
        known = list(model.model_fields) if model is not None else []
        known += ["base"] if model is Config else [PRESET] if where.startswith("stages.") and model in SECTIONS.values() else []
        now = renamed(model.__name__, key) if model is not None else None
        if now is not None:
            return [f"{origin}: {where}: '{key}' {now}"]
        keys = tuple(part for part in loc if isinstance(part, str) and part != "stages")
        foreign = [f"{origin}: {where}: unknown key '{key}'; {said}" for origin, where, key, said in _foreign(node, where, keys)]
        own = f"{origin}: {where}: unknown key '{key}'{nearest(key, known)} (known: {', '.join(known)})"
        return foreign if node is None or (node.mapping is None and foreign) else [own, *foreign]
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
    if kind == "value_error":  # keys of a section that contradict each other
        return [f"{origin}: {where}: {str(item['msg']).removeprefix('Value error, ')}"]
    value = node.plain() if node is not None else item["input"]
    if kind in _RANGES and not isinstance(value, list):
        return [f"{origin}: {where}: {item['msg'].replace('Input should', 'must')}, got {_shown_value(value)}"]
    options = [str(a) for a in typing.get_args(annotation)] if typing.get_origin(annotation) is typing.Literal else []
    hint = (_WHY_NOT.get((where, value)) or nearest(value, options)) if isinstance(value, str) else ""
    return [f"{origin}: {where}: expected {shown(annotation)}, got {_shown_value(value)}{hint}"]


def _foreign(node: Node | None, where: str, keys: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
    """(origin, dotted path, key, what it is here) of an unknown key that another trainer has, or of each such key below it."""
    from vlmrl.config.foreign_keys import hint  # a long table, which recipes without mistakes never ask

    if node is None:
        return
    if (said := hint(keys)) is not None:
        yield node.origin, where, keys[-1], said
        return
    for key, child in (node.mapping or {}).items():
        yield from _foreign(child, f"{where}.{key}", (*keys, key))


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
