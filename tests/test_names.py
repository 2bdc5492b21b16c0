"""Names: the loop and the configuration know no method by its name, and no two classes of the core have the same.

What a method needs and refuses, it declares itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vlmrl.methods import registries

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vlmrl"
FILES = [path for part in ("train", "run", "config") for path in sorted((PACKAGE / part).rglob("*.py"))]
NAMES = sorted({name for registry in registries().values() for name in registry.names() if registry.get(name).ours})

WORDS = {
    "grpo": "the kind of a stage, and its file",
    "none": "nothing",
    "choice": "the chosen value of an argument",
    "click": "a kind of generated world (`toy.world.kind`)",
    "count": "a number of things",
    "number": "a number of things",
    "length": "of a list or an answer",
    "math": "the module of Python",
    "python": "the language, in the table of versions",
    "plain": "without decoration; values of a tree",
    "fixed": "options that may not change between start and resume",
    "exact": "the same in every byte",
    "uniform": "the distribution that `rng.uniform` draws from",
    "judge": "whoever judges an answer",
    "guide": "the collector of hint rounds (`rollout.guide`)",
    "trajectory": "of a GUI agent, in a row's meta",
    "tracking": "metrics.jsonl and the trackers; an answer type",
    "overlong": "why a prompt was left out",
    "format": "an answer format, in a table's head",
    "highlight": "an option of rich",
    "sequence": "the columns of a packed row, which ranks can share (`train.sequence`)",
}
"""Methods that are called like an ordinary word, and what the word means where it stands in these files."""


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that the code uses or makes, and every string that is a name and nothing else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield str(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield from [*node.name.split("."), node.asname or ""]
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")


def occurrences(source: str) -> set[str]:
    """Registered methods that a file names: in code, and where the name is no ordinary word also in comments and messages."""
    code = set(identifiers(ast.parse(source))) & set(NAMES)
    return code | {name for name in NAMES if re.search(r"[_0-9]", name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source)}


def test_no_method_is_named() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in FILES for name in sorted(occurrences(path.read_text("utf-8")) - set(WORDS))]
    assert not wrong, "let the method declare it (docs/adding_a_method.md): " + ", ".join(wrong)


def test_every_excused_word_is_there_and_is_a_method() -> None:
    seen = {name for path in FILES for name in occurrences(path.read_text("utf-8"))}
    assert set(WORDS) <= set(NAMES)
    assert set(WORDS) - seen == set()


@pytest.mark.parametrize(
    "source",
    [
        'if cfg.advantage.name == "spo": pass',
        "from vlmrl.algo.loss import ppo_clip",
        "x = state.dr_grpo",
        "# as g2rpo wants it",
        'f"use {x} or dr_grpo"',
    ],
)
def test_a_name_would_be_found(source: str) -> None:
    assert occurrences(source) - set(WORDS)


def repeated_classes(sources: dict[str, str]) -> dict[str, list[str]]:
    """Public top-level class -> the files that define it, of the classes that more than one file defines."""
    places: dict[str, list[str]] = {}
    for file, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file)
    return {name: files for name, files in places.items() if len(files) > 1}


def test_no_public_class_name_stands_for_two_classes() -> None:
    """So that a name in a message, a traceback or a search says which class is meant. Methods and extras have names of their own."""
    optional = {"zoo", "extras"}
    sources = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    core = {file: source for file, source in sources.items() if Path(file).parts[0] not in optional}
    assert len(core) > 100
    assert repeated_classes(core) == {}


def test_a_repeated_class_name_would_be_found() -> None:
    sources = {"a.py": "class Row: ...\nclass _Row: ...", "b.py": "class Row: ...", "c.py": "class _Row: ...\ndef f():\n    class Row: ..."}
    assert repeated_classes(sources) == {"Row": ["a.py", "b.py"]}


TENSORS = ("algo", "policy", "train", "rollout")
"""Folders whose public functions say in `Returns:` (a generator in `Yields:`) what tensors they give: axes, type, edge cases."""
SILENT = ("train/stage/providers",)
"""Files and folders that do not say so yet. A new one does not come in, and one that is done goes out."""


def silent_functions(source: str) -> list[str]:
    """Name the public top-level functions that return tensors and have no section that says which."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and node.returns is not None
        and re.search(r"\bTensor\b", ast.unparse(node.returns))
        and not re.search(r"^(Returns|Yields):$", ast.get_docstring(node) or "", re.M)
    ]


def test_functions_say_what_tensors_they_return() -> None:
    files = [path for part in TENSORS for path in sorted((PACKAGE / part).rglob("*.py"))]
    silent = {str(path.relative_to(PACKAGE)): names for path in files if (names := silent_functions(path.read_text("utf-8")))}
    excused = {file: next((one for one in SILENT if file == one or file.startswith(f"{one}/")), None) for file in silent}
    wrong = [f"{file}: {', '.join(names)}" for file, names in silent.items() if excused[file] is None]
    assert not wrong, "a docstring wants `Returns:` with the axes of the tensors: " + "; ".join(wrong)
    assert sorted({*SILENT} - {*excused.values()}) == [], "these say all of it: take them out of SILENT"


def test_a_silent_function_would_be_found() -> None:
    said = 'def f(x) -> dict[str, torch.Tensor]:\n    """Do.\n\n    Returns:\n        [N]\n    """\n'
    assert silent_functions(said) == []
    assert silent_functions(said.replace("Returns:", "It returns:")) == ["f"]
    assert silent_functions("def f() -> int: ...\ndef _g() -> Tensor: ...\nclass A:\n    def h(self) -> Tensor: ...\n") == []
