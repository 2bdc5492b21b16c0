"""YAML as a tree that remembers where each value came from; merging; dotted overrides.

Scalars follow the YAML 1.2 core schema, not PyYAML's 1.1: `1e-6` is a float (1.1 reads it as text), `yes`, `on` and `12:30`
are text, `010` is ten. Not accepted, so that a file is data and nothing else: tags, anchors and aliases, merge keys,
repeated keys, `.nan` and `.inf` (read as text, hence a type error wherever a number is expected).
"""

# PyYAML ships no types; what comes out of it is checked here, value by value.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from vlmrl.registry import nearest

MAX_BYTES = 1 << 20
"""Recipes are pages, not books; a longer file is refused before it is parsed."""

DEFAULT = "default"
"""Origin of a value that no file and no override gives."""

COMMAND_LINE = "command line"
"""Origin of a value that an override gives."""

_TAG = "tag:yaml.org,2002:"
_SCALARS: dict[str, re.Pattern[str]] = {
    "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"^[-+]?[0-9][0-9_]*$"),
    "float": re.compile(r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
}
_SECRET = re.compile(r"\b(?:hf_|ghp_|sk-)[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|://[^/\s:@]+:[^/\s@]+@")


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars above instead of PyYAML's."""


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern in _SCALARS.items():
    # The second argument lists possible first characters; None means any.
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, None)


@dataclass(slots=True)
class Node:
    """A value and its origin. `value` is `dict[str, Node]`, `list[Node]` or a scalar."""

    value: Any
    origin: str
    """`file:line`, `COMMAND_LINE` or `DEFAULT`."""

    @property
    def mapping(self) -> dict[str, Node] | None:
        """The children by key, or None when this is not a mapping."""
        return cast("dict[str, Node]", self.value) if isinstance(self.value, dict) else None

    @property
    def items(self) -> list[Node] | None:
        """The children in order, or None when this is not a list."""
        return cast("list[Node]", self.value) if isinstance(self.value, list) else None

    def plain(self) -> Any:
        """The value without origins."""
        if self.mapping is not None:
            return {k: v.plain() for k, v in self.mapping.items()}
        if self.items is not None:
            return [v.plain() for v in self.items]
        return self.value

    @property
    def name(self) -> str | None:
        """The text under `name`, for list items that are addressed by name."""
        child = (self.mapping or {}).get("name")
        return child.value if child is not None and isinstance(child.value, str) else None


def read(path: Path, problems: list[str]) -> Node:
    """The tree of a YAML file; what is wrong with it is appended to `problems`, and an empty mapping stands in for what cannot be read."""
    nothing = Node({}, f"{path}:1")
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return nothing
    except UnicodeDecodeError as error:
        problems.append(f"{path}: is not UTF-8 (byte {error.start})")
        return nothing
    if len(raw) > MAX_BYTES:
        problems.append(f"{path}: {len(raw)} bytes; a recipe has at most {MAX_BYTES}")
        return nothing
    node = parse(text, str(path), problems)
    if node is None or node.value is None:
        return nothing
    if node.mapping is None:
        problems.append(f"{node.origin}: expected a mapping of sections, got {type(node.value).__name__}")
        return nothing
    return node


def parse(text: str, source: str, problems: list[str], *, lines: bool = True) -> Node | None:
    """The tree of a YAML text, or None when it is empty or not YAML. Origins are `source:line`, or `source` without `lines`."""
    try:
        root = yaml.compose(text, Loader=_Loader)
        return None if root is None else _convert(root, source, lines, problems, set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.append(f"{_origin(source, mark.line if mark else 0, lines)}: not valid YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        problems.append(f"{source}: not valid YAML: {error}")
    except RecursionError:
        problems.append(f"{source}: nested too deeply")
    return None


def _origin(source: str, line: int, lines: bool) -> str:
    return f"{source}:{line + 1}" if lines else source


def _convert(node: yaml.Node, source: str, lines: bool, problems: list[str], seen: set[int]) -> Node:
    origin = _origin(source, node.start_mark.line, lines)
    if id(node) in seen:
        problems.append(f"{origin}: anchors and aliases are not accepted; write the value out")
        return Node(None, origin)
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        return _convert_mapping(node, source, lines, problems, seen)
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return Node([_convert(child, source, lines, problems, seen) for child in node.value], origin)
    if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_TAG) in (*_SCALARS, "str"):
        return Node(_scalar(node, origin, problems), origin)
    problems.append(f"{origin}: tag '{node.tag.replace(_TAG, '!!')}' is not accepted; a recipe holds plain values only")
    return Node(None, origin)


def _convert_mapping(node: yaml.MappingNode, source: str, lines: bool, problems: list[str], seen: set[int]) -> Node:
    out: dict[str, Node] = {}
    for key_node, value_node in node.value:
        at = _origin(source, key_node.start_mark.line, lines)
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
            problems.append(f"{at}: keys are text, got {getattr(key_node, 'value', key_node.tag)!r}")
            continue
        key = str(key_node.value)
        child = _convert(value_node, source, lines, problems, seen)
        if key in out:
            problems.append(f"{at}: key '{key}' was already given at {out[key].origin}")
            continue
        child.origin = at  # the line of the key is where a reader looks, also for a value on the next line
        out[key] = child
    return Node(out, _origin(source, node.start_mark.line, lines))


def _scalar(node: yaml.ScalarNode, origin: str, problems: list[str]) -> Any:
    text = str(node.value)
    kind = node.tag.removeprefix(_TAG)
    if kind == "str":
        if _SECRET.search(text):
            problems.append(f"{origin}: a value looks like a secret; secrets come from the environment, never from a recipe")
            return ""
        return text
    if not _SCALARS[kind].match(text):
        problems.append(f"{origin}: {text!r} is not a {kind}")
        return None
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    digits = text.replace("_", "")
    if len(digits) > 100:
        problems.append(f"{origin}: a number of {len(digits)} characters")
        return None
    if kind == "int":
        return int(digits)
    number = float(digits)
    if abs(number) == float("inf"):
        problems.append(f"{origin}: {text!r} is too large for a float")
        return None
    return number


def merge(below: Node, above: Node) -> Node:
    """`above` wins; mappings merge key by key, everything else (lists too) is replaced as a whole.

    A method (`{name: m, clip_high: 0.28}`) under another name is replaced as a whole as well, since its arguments
    mean nothing to the other function; `run` has a name that is not a method's and is told apart by `_is_section`.
    """
    if below.mapping is None or above.mapping is None:
        return above
    out = dict(below.mapping)
    for key, node in above.mapping.items():
        old = out.get(key)
        replaced = old is None or (key not in _NAMED_SECTIONS and old.name is not None and node.name is not None and old.name != node.name)
        out[key] = node if old is None or replaced else merge(old, node)
    return Node(out, above.origin)


_NAMED_SECTIONS = frozenset({"run"})
"""Sections with a `name` of their own that names no method."""


def override(root: Node, text: str, problems: list[str], method_names: dict[str, str]) -> Node:
    """The tree with one `a.b.c=value` applied. List items are addressed by their `name`, or by their number from 0.

    `method_names` maps a key such as `loss` to its default method, so that `stages.rl.loss.clip_high=0.28` works where the
    recipe leaves `loss` at its default.
    """
    path, equals, raw = text.partition("=")
    path = path.strip()
    if not equals or not path or any(not part for part in path.split(".")):
        problems.append(f"{COMMAND_LINE}: '{text}': expected section.key=value")
        return root
    if not raw.strip():
        problems.append(f"{COMMAND_LINE}: '{text}': no value; write {path}=null to unset")
        return root
    wrong: list[str] = []
    value = parse(raw, COMMAND_LINE, wrong, lines=False)
    problems += [problem.replace(COMMAND_LINE, f"{COMMAND_LINE}: {path}", 1) for problem in wrong]
    if value is None:
        return root
    return _set(root, path.split("."), value, path, problems, method_names)


def _set(node: Node, parts: list[str], value: Node, path: str, problems: list[str], methods: dict[str, str]) -> Node:
    if not parts:
        return merge(node, value)
    head, rest = parts[0], parts[1:]
    if node.items is not None:
        index = _item(node.items, head)
        if index is None:
            names = [item.name for item in node.items if item.name is not None]
            problems.append(f"{COMMAND_LINE}: {path}: no item '{head}'{nearest(head, names)} (known: {', '.join(names) or 'nothing'})")
            return node
        changed = list(node.items)
        changed[index] = _set(changed[index], rest, value, path, problems, methods)
        return Node(changed, node.origin)
    if node.mapping is None and node.value is not None:
        problems.append(f"{COMMAND_LINE}: {path}: there is no '{head}' under {node.value!r}")
        return node
    if not rest:
        return merge(Node(node.mapping or {}, node.origin), Node({head: value}, node.origin))
    children = dict(node.mapping or {})
    start = Node({"name": Node(methods[head], DEFAULT)} if head in methods else {}, COMMAND_LINE)
    children[head] = _set(children.get(head, start), rest, value, path, problems, methods)
    return Node(children, node.origin)


def _item(items: list[Node], head: str) -> int | None:
    """Position of the item of that name, else of that number."""
    named = [i for i, item in enumerate(items) if item.name == head]
    if named:
        return named[0]
    return int(head) if head.isascii() and head.isdigit() and int(head) < len(items) else None


def segment(names: list[str | None], index: int) -> str:
    """How item `index` of a list is addressed in a dotted path: by its name where that is unique and can be shown, else by its number."""
    name = names[index]
    unique = name is not None and names.count(name) == 1 and "." not in name and name.isprintable()
    return name if unique and name else str(index)
