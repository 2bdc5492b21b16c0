"""The errands of CONTRIBUTING.md, done literally in a copy of the tree: files written, commands run, and nothing else changed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:^File `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
EDITED = {
    1: {"docs/methods.md", "docs/papers.md"},
    2: {"docs/methods.md", "docs/papers.md"},
    3: {"data/README.md"},
    4: {"evals/README.md"},
    5: {"tests/unit/answers/test_answer_types.py", "docs/data.md"},
    6: {"vlmrl/families/registry.py"},
    7: set(),
    8: set(),
}
"""Files that exist before and that an errand changes; each is named in its text."""
PARTS = ("CONTRIBUTING.md", "README.md", "pyproject.toml", "vlmrl", "tests", "data", "evals", "docs", "configs", "examples")


@dataclass(frozen=True)
class Errand:
    number: int
    title: str
    text: str

    def files(self) -> dict[str, str]:
        """Path -> content of the files that the errand writes."""
        return {m["file"]: m["text"] for m in BLOCK.finditer(self.text) if m["file"] is not None}

    def commands(self) -> list[str]:
        """Blocks of shell commands, in order."""
        return [m["text"] for m in BLOCK.finditer(self.text) if m["file"] is None and m["kind"] == "bash"]


def errands() -> list[Errand]:
    found = re.findall(r"^### (\d+)\. ([^\n]+)\n(.*?)(?=^### \d|\Z)", PAGE.partition("\n## Eight errands\n")[2], re.M | re.S)
    return [Errand(int(number), title, text) for number, title, text in found]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files under version control's folders, without caches."""
    folder = tmp_path_factory.mktemp("tree")
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*", "runs"))
        else:
            shutil.copy(source, folder / name)
    return folder


def state(folder: Path) -> dict[str, str]:
    """Path -> hash of every file."""
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and path.is_file() and not path.relative_to(folder).as_posix().startswith(".")
    ]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def shell(folder: Path, command: str, bin_: Path) -> subprocess.CompletedProcess[str]:
    """Run commands as a contributor does: `python` and `vlmrl` of the environment, the tree as working directory."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{bin_}:{os.environ['PATH']}"}
    environment["PYTEST_ADDOPTS"] = "-p no:cacheprovider"
    environment.pop("PYTEST_CURRENT_TEST", None)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def bin_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("python", ""), ("vlmrl", "-m vlmrl.cli")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def test_there_are_the_eight() -> None:
    assert [errand.number for errand in errands()] == list(range(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("errand", errands(), ids=lambda e: f"{e.number}-{e.title.lower().replace(' ', '_')}")
def test_errand(errand: Errand, tree: Path, bin_: Path) -> None:
    """In order, in one tree: a later errand may continue an earlier one."""
    before = state(tree)
    new = errand.files()
    assert new or errand.commands()
    assert not set(new) & set(before), "an errand writes new files and edits others by its commands"
    for path, text in new.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")
    for command in errand.commands():
        done = shell(tree, command, bin_)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        for count in re.findall(r"(\d+) passed", done.stdout):
            assert int(count) > 0
    after = state(tree)
    changed = {path for path in before if after.get(path) != before[path]}
    assert set(after) - set(before) == set(new), "only the files that the errand shows are new"
    assert changed == EDITED.get(errand.number, set())
    assert all(f"`{path}`" in errand.text or path in " ".join(errand.commands()) for path in changed)
    python = [path for path in new if path.endswith(".py")]
    if python:
        assert (
            shell(tree, f"python -m ruff check {' '.join(python)} && python -m ruff format --check {' '.join(python)}", bin_).returncode
            == 0
        )
