"""The Dockerfiles, as far as they go without docker: what they copy is there, what they install exists."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction; lines that end in a backslash go on."""
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def copied(path: Path) -> list[str]:
    """Files and folders that an image gets from the checkout, under their own names."""
    out: list[str] = []
    for keyword, rest in instructions(path):
        if keyword == "COPY":
            *sources, target = rest.split()
            assert target == "./" or sources == [target], f"{path.name}: {rest}"
            out += sources
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_copied_is_there_and_not_ignored(path: Path):
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for name in copied(path):
        assert (ROOT / name).exists(), name
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
    kinds = [keyword for keyword, _ in instructions(path)]
    assert kinds[0] == "FROM"
    assert set(kinds) <= {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_installed_exists(path: Path):
    project = (ROOT / "pyproject.toml").read_text()
    extras = set(re.findall(r"^(\w+) = \[", project.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M))
    steps = [rest for keyword, rest in instructions(path) if keyword == "RUN"]
    (install,) = [shlex.split(step) for step in steps if 'pip install "."' in step or 'pip install ".[' in step]
    wanted = re.findall(r"\w+", next(word for word in install if word.startswith(".[")))
    assert wanted
    assert set(wanted) <= extras
    pins = ROOT / install[install.index("-c") + 1]
    torch = [line for line in pins.read_text().splitlines() if re.match(r"torch==[\d.]+$", line)]
    assert len(torch) == 1, "the line that `grep '^torch=='` gives to pip"
    assert f"grep '^torch==' {pins.relative_to(ROOT).as_posix()}" in "\n".join(steps)
    python = next(rest for keyword, rest in instructions(path) if keyword == "FROM")
    assert python.startswith("python:3.11-"), "the Python of the pins and of the tests"


def test_both_copy_the_same():
    assert len(FILES) == 2
    assert copied(FILES[0]) == copied(FILES[1])
