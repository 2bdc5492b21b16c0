"""Every function of `vlmrl.metrics` is used: by a reward, a scorer, a data set, a command. What only tests know is not offered."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
METRICS = ROOT / "vlmrl" / "metrics"
OUTSIDE = [p for folder in ("vlmrl", "data") for p in (ROOT / folder).rglob("*.py") if METRICS not in p.parents]


def used(node: ast.AST) -> set[str]:
    """Names and attributes in a piece of code, and what it imports."""
    out: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            out.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            out.add(inner.attr)
        elif isinstance(inner, ast.alias):
            out.add(inner.name)
    return out


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """Functions, classes and constants of a module."""
    out: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            out[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            out |= {inner.id: node for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return out


def unreachable() -> list[str]:
    """`<module>.<name>` of functions and classes that no code outside leads to."""
    modules = {path.stem: defined(ast.parse(path.read_text(encoding="utf-8"))) for path in METRICS.glob("*.py")}
    everything = {(module, name): node for module, names in modules.items() for name, node in names.items()}
    of_name: dict[str, list[tuple[str, str]]] = {}
    for module, name in everything:
        of_name.setdefault(name, []).append((module, name))
    waiting = {place for path in OUTSIDE for name in imported(path) for place in of_name.get(name, [])}
    reached: set[tuple[str, str]] = set()
    while waiting:
        place = waiting.pop()
        reached.add(place)
        waiting |= {other for name in used(everything[place]) for other in of_name.get(name, [])} - reached
    functions = {place for place, node in everything.items() if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return sorted(f"{module}.{name}" for module, name in functions - reached)


def imported(path: Path) -> set[str]:
    """Names that a file takes from the metrics."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vlmrl.metrics")]
    names = {alias.name for node in nodes for alias in node.names}
    modules = {alias.asname or alias.name for node in nodes if node.module == "vlmrl.metrics" for alias in node.names}
    attributes = {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in modules
    }
    return names | attributes


def test_no_metric_is_known_to_tests_only() -> None:
    assert unreachable() == []
