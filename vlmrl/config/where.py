"""Where a recipe says what a problem is about: `stages.rl.rewards.0.name` to `file:line` of the recipe or its base, or the command line."""

from __future__ import annotations

import re

from vlmrl.config.tree import DEFAULT, Node

_STAGE = re.compile(r"stages\[(\d+)\] \([^)]*\): ")
_PATH = re.compile(r"[A-Za-z_][\w.]*")


def located(problem: str, root: Node) -> str:
    """A problem with its origin in front: `file:line: path: what`.

    Args:
        problem: starts with a dotted path and a colon, with `stages[i] (name): `, or names a path in its text.
        root: the tree of the recipe, merged with its base and the command line.
    """
    stage = _STAGE.match(problem)
    if stage is not None:
        holder = _step(_step(root, "stages"), stage[1])
        found = _mentioned(problem[stage.end() :], holder) if holder is not None else None
        return _with(problem, found or holder or root)
    path, colon, _ = problem.partition(": ")
    if colon and _PATH.fullmatch(path):
        return _with(problem, _deepest(path, root))
    return _with(problem, _mentioned(problem, root) or root)


def _with(problem: str, node: Node) -> str:
    return f"{node.origin}: {problem}"


def _deepest(path: str, root: Node) -> Node:
    """The node that a dotted path leads to, or the last one on the way that somebody wrote."""
    here, last, rest = root, root, path
    while rest:
        found = _longest(here, rest)
        if found is None:
            break
        here, rest = found
        last = last if here.origin == DEFAULT else here
    return last


def _longest(node: Node, path: str) -> tuple[Node, str] | None:
    """The child that a path begins with, and the rest of the path. Names of list items may hold dots."""
    names = list(node.mapping or {}) + [item.name for item in node.items or [] if item.name is not None]
    fitting = [name for name in names if path == name or path.startswith(f"{name}.")]
    head = max(fitting, key=len) if fitting else path.partition(".")[0]
    child = _step(node, head)
    return None if child is None else (child, path[len(head) + 1 :])


def _step(node: Node | None, head: str) -> Node | None:
    if node is None:
        return None
    if node.items is not None:
        named = [item for item in node.items if item.name == head]
        inside = head.isascii() and head.isdigit() and int(head) < len(node.items)
        return named[0] if named else node.items[int(head)] if inside else None
    return (node.mapping or {}).get(head)


def _mentioned(text: str, root: Node) -> Node | None:
    """What the first path in a text that leads somewhere is about."""
    for word in _PATH.findall(text):
        here, rest = root, word.rstrip(".")
        while rest and (found := _longest(here, rest)) is not None:
            here, rest = found
        if not rest and here.origin != DEFAULT:
            return here
    return None
