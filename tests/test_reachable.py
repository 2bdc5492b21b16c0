"""Every module of the package is used: by a command, a registry, an entry point of the installed package, or the data scripts.

What only tests import is not a feature. It belongs to `tests/`, or a command has to offer it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras import PROVIDES
from vlmrl.methods import PACKAGES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vlmrl"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts}


def with_parents(name: str) -> Iterator[str]:
    """A module and the packages around it: importing the first runs all of them."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if ".".join(parts[:end]) in MODULES:
            yield ".".join(parts[:end])


def uses(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that a file imports, anywhere in it, or names as text (`python -m vlmrl.x`, `"vlmrl.x.Class"`,
    `"vlmrl.x:attribute"`).

    Imports under `if TYPE_CHECKING:` do not run and do not count. A package that walks its own `__path__` imports all that lies in it.
    """
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped |= {inner for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"vlmrl(\.\w+)+(:\w+)?", node.value):
            found = [node.value.replace(":", ".")]
        else:
            continue
        for name in found:
            yield from with_parents(name)


def roots() -> Iterator[str]:
    """Where use begins."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    entries = re.findall(r'= "(vlmrl[\w.]*):\w+"', project)
    assert len(entries) >= 2, "pyproject.toml names the command and the lmms-eval entry"
    yield from entries
    yield from (name for name in MODULES if name.endswith(".__main__"))  # python -m vlmrl
    for name in MODULES:  # Python imports it at start from a folder that a module beside the folder puts on PYTHONPATH
        if name.endswith(".sitecustomize"):
            folder = MODULES[name].parent
            assert any(f'"{folder.name}"' in one.read_text(encoding="utf-8") for one in folder.parent.glob("*.py")), name
            yield name
    for package in (*PACKAGES, "vlmrl.answers"):  # `methods`, and the package of answer types itself, import every file in these
        yield from (name for name in MODULES if name == package or name.startswith(f"{package}."))
    yield from (place.partition(":")[0] for places in PROVIDES.values() for place in places.values())
    for script in sorted((ROOT / "data").rglob("*.py")):
        yield from uses(ast.parse(script.read_text(encoding="utf-8")))


def walks_itself(name: str) -> bool:
    """Whether a package imports all of its modules with `pkgutil`."""
    text = MODULES[name].read_text(encoding="utf-8")
    return MODULES[name].name == "__init__.py" and "iter_modules(__path__)" in text and "import_module(" in text


def reachable() -> set[str]:
    seen: set[str] = set()
    waiting = [name for root in roots() for name in with_parents(root)]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += uses(ast.parse(MODULES[name].read_text(encoding="utf-8")))
            if walks_itself(name):
                waiting += (other for other in MODULES if other.rpartition(".")[0] == name)
    return seen


def test_every_module_is_used():
    lost = sorted(set(MODULES) - reachable())
    assert not lost, (
        "no command, registry, entry point or data script reaches: " + ", ".join(lost) + "; delete it, or move it to tests/ or benchmarks/"
    )


def test_a_module_that_only_tests_import_is_found(monkeypatch, tmp_path):
    """The search itself: a new file that nothing imports is lost, also where only a type checker sees its import."""
    extra = tmp_path / "extra.py"
    extra.write_text("")
    monkeypatch.setitem(MODULES, "vlmrl.metrics.extra", extra)
    assert "vlmrl.metrics.extra" not in reachable()
    seen_by_types = ast.parse("if TYPE_CHECKING:\n    from vlmrl.metrics import extra\n")
    assert "vlmrl.metrics.extra" not in set(uses(seen_by_types))
    assert {"vlmrl.metrics.extra", "vlmrl.metrics"} <= set(uses(ast.parse("from vlmrl.metrics import extra")))
    assert "vlmrl.metrics.extra" in set(uses(ast.parse('run("-m", "vlmrl.metrics.extra")')))
    assert "vlmrl.metrics.extra" in set(uses(ast.parse('load("vlmrl.metrics.extra:thing")')))
