"""What the code imports is declared: as a dependency, or in an extra that its message names."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from vlmrl.families.packages import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
FILES = sorted((ROOT / "vlmrl").rglob("*.py"))

DISTRIBUTION = {"browsergym": "browsergym-core", "PIL": "pillow", "yaml": "pyyaml", "pydantic_core": "pydantic"}
"""Package in an import -> the name it is installed under, where that is not the same but for `_` and `-`."""
TOOLS = {"dev", "docs"}
"""Extras of those who work on the package: nothing of them is imported by it."""
OUTSIDE = {
    "desktop_env": "OSWorld's package, whose pins exclude ours: it has a Python of its own",
    "lmms_eval": "installed without its dependencies (pyproject.toml says why)",
    "swift": "a trainer whose reward functions are read",
}
"""Package -> why no extra can hold it."""


def names(text: str) -> set[str]:
    """Distributions that a list of requirements names."""
    return {re.split(r"[^\w.-]", found)[0].lower().replace("_", "-") for found in re.findall(r'"([A-Za-z][^"]*)"', text)}


def declared() -> tuple[set[str], dict[str, set[str]]]:
    """Dependencies, and those of each extra."""
    always = PROJECT.partition("\ndependencies = [")[2].partition("\n]")[0]
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return names(always), {name: names(inner) for name, inner in re.findall(r"^(\w+) = \[(.*)\]$", extras, re.M)}


def imported() -> dict[str, set[str]]:
    """Top-level packages that are not Python's own nor ours -> files that import them, or look for them by a constant name."""
    out: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("find_spec", "import_module") and node.args:
                first = node.args[0]
                found = [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
            for name in found:
                top = name.split(".")[0]
                if top not in {"vlmrl", "", *sys.stdlib_module_names}:
                    out.setdefault(top, set()).add(path.relative_to(ROOT).as_posix())
    return out


def distribution(package: str) -> str:
    return DISTRIBUTION.get(package, package).lower().replace("_", "-")


def test_every_import_is_a_dependency_or_in_an_extra():
    always, extras = declared()
    users = {name for extra, held in extras.items() if extra not in TOOLS for name in held}
    found = imported()
    assert len(found) > 20
    lost = {package: sorted(files) for package, files in found.items() if distribution(package) not in always | users | set(OUTSIDE)}
    lost = {package: files for package, files in lost.items() if package not in OUTSIDE}
    assert not lost, f"in no list of pyproject.toml: {lost}"
    assert set(OUTSIDE) <= set(found)


def test_every_extra_is_used_and_every_message_names_one():
    _, extras = declared()
    packages = {distribution(package) for package in imported()} | set(EXTRAS)  # of which the latter are imported by processors
    idle = [name for name, held in extras.items() if name not in TOOLS and not held & packages]
    assert not idle, f"extras of which nothing is imported: {idle}"
    asked = {extra for path in FILES for extra in re.findall(r"vlmrl\[([\w,]+)\]", path.read_text(encoding="utf-8"))}
    assert {one for extra in asked for one in extra.split(",")} <= set(extras)
    said = {one for extra in asked for one in extra.split(",")}
    assert set(extras) - TOOLS <= said, "an extra that no message of the program names"
