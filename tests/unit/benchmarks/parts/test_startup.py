"""A command does not import what it does not use: seen in a process of its own, without a clock (`benchmarks.parts.startup`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.parts import startup

SAYS_WHAT_IT_IMPORTED = """
import json, sys
where, sys.argv = sys.argv[1], ["vlmrl", *sys.argv[2:]]
from vlmrl.cli import main
try:
    main()
finally:
    with open(where, "w") as file:
        json.dump(sorted(sys.modules), file)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `prepare` writes: a model, rows, a recipe and its finished run."""
    made = tmp_path_factory.mktemp("startup")
    startup.prepare(made)
    return made


def imported(folder: Path, arguments: tuple[str, ...]) -> set[str]:
    """Modules of a process that has run a command to its end."""
    where = folder / "modules.json"
    command = [sys.executable, "-c", SAYS_WHAT_IT_IMPORTED, str(where), *arguments]
    done = subprocess.run(command, cwd=folder, env=startup.environment(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return set(json.loads(where.read_text()))


@pytest.mark.parametrize("command", startup.COMMANDS, ids=lambda command: command.name)
def test_what_is_not_used_is_not_imported(command: startup.Command, folder: Path) -> None:
    if command.name in ("list", "check RECIPE --no-data"):
        imported(folder, tuple(command.arguments))  # the first one reads the registries, and keeps what they said
    found = imported(folder, tuple(command.arguments))
    assert "vlmrl.cli" in found
    assert {module for module in (*startup.UNUSED, *command.without) if module in found} == set()


def test_a_command_over_its_budget_is_no_success(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command that takes no time, with no budget at all: nothing here depends on how fast the machine is."""
    monkeypatch.setattr(startup, "prepare", lambda folder: None)
    for budget, code in ((-1.0, 1), (1000.0, 0)):
        monkeypatch.setattr(startup, "COMMANDS", (startup.Command(name="version", arguments=("--version",), budget=budget),))
        monkeypatch.setattr(sys, "argv", ["startup", "--repeats", "1", "--write", str(folder / "start.md")])
        with pytest.raises(SystemExit) as stop:
            startup.main()
        assert stop.value.code == code
        assert f"| version | {budget:.1f} s |" in (folder / "start.md").read_text()


def test_a_command_that_fails_is_not_measured(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"list nothing ended with 64"):
        startup.measured(startup.Command(name="wrong", arguments=("list", "nothing"), budget=1.0), folder, 1)
