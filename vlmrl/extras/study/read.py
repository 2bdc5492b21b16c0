"""The file of a study, read and checked: every problem with its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from vlmrl.config import tree
from vlmrl.config.tree import Node
from vlmrl.errors import ConfigError
from vlmrl.extras.study.spec import Study
from vlmrl.paths import find, missing
from vlmrl.registry import nearest


def find_study(asked: str | Path) -> Path:
    """Find the file of a study: a path, or the name of one in the working folder or of ours.

    Raises:
        ConfigError: there is none.
    """
    found = find("study", asked)
    if found is None:
        raise missing("study", asked)
    return found.path


def read_study(path: Path) -> Study:
    """Read and check a file.

    Raises:
        ConfigError: with every problem, each with its file and line.
    """
    problems: list[str] = []
    root = tree.read(path, problems)
    if problems:
        raise ConfigError(problems)
    plain = root.plain()
    if isinstance(plain, dict) and isinstance(plain.get("recipe"), str) and (path.parent / plain["recipe"]).is_file():
        plain["recipe"] = str(path.parent / plain["recipe"])
    try:
        return Study.model_validate({"name": path.stem, **plain} if isinstance(plain, dict) else plain)
    except ValidationError as error:
        raise ConfigError(list(dict.fromkeys(text for item in error.errors(include_url=False) for text in _said(item, root)))) from error


def _said(item: Any, root: Node) -> list[str]:
    """A problem of pydantic's as `file:line: key: what`; those that `spec` finds itself are several in one."""
    loc = tuple(item["loc"])
    if item["type"] == "value_error":
        texts = str(item["ctx"]["error"]).splitlines()
        if not loc:  # of the whole file: the key stands in the text
            return [f"{_at(root, tuple(_keys(text))).origin}: {text}" for text in texts]
        return [f"{_at(root, loc).origin}: {_dotted(loc)}: {text}" for text in texts]
    where = f"{_at(root, loc).origin}: {_dotted(loc)}"
    if item["type"] == "extra_forbidden":
        known = list(_fields(loc[:-1]))
        return [f"{where}: unknown key '{loc[-1]}'{nearest(str(loc[-1]), known)} (known: {', '.join(known)})"]
    if item["type"] == "missing":
        return [f"{where}: is missing"]
    return [f"{where}: {item['msg']}, got {item['input']!r:.80}"]


def _keys(text: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in text.partition(":")[0].split(".")]


def _dotted(loc: tuple[Any, ...]) -> str:
    return ".".join(map(str, loc))


def _at(root: Node, loc: tuple[Any, ...]) -> Node:
    """The node at a place of the tree, or the last one on the way that is there."""
    node = root
    for part in loc:
        inner = node.mapping if node.mapping is not None else dict(enumerate(node.items or []))
        if part not in inner:
            break
        node = inner[part]
    return node


def _fields(loc: tuple[Any, ...]) -> dict[str, Any]:
    """The keys of the part at a place."""
    model: type[BaseModel] = Study
    for part in loc:
        field = model.model_fields.get(str(part))
        inner = _models(field.annotation) if field is not None else []
        model = inner[0] if inner else model
    return dict(model.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]
