"""The pins that `vlmrl tools pins` prints: of the right file, without any package, and in a group that others may have made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.install import command, pins

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("kind", "python", "name"),
    [
        ("cpu", (3, 10), "cpu-py310.txt"),
        ("cpu", (3, 11), "cpu-py311.txt"),
        ("cpu", (3, 13), "cpu-py311.txt"),
        ("gpu", (3, 10), "gpu.txt"),
        ("trackers", (3, 12), "trackers.txt"),
    ],
)
def test_the_file_of_a_machine(kind: pins.Kind, python: tuple[int, int], name: str) -> None:
    assert pins.constraints(kind, python) == ROOT / "constraints" / name
    assert (ROOT / "constraints" / name).is_file()


def test_without_any_package() -> None:
    """`-S` leaves site-packages out: the state after `pip install --no-deps vlmrl`."""
    command = [sys.executable, "-S", "-m", "vlmrl.extras.install.pins", "--gpu"]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, (ROOT / "constraints" / "gpu.txt").read_text())
    assert done.stderr.startswith("pins: gpu.txt, for an NVIDIA GPU, Python 3.")


def test_what_the_command_prints_can_be_given_to_pip() -> None:
    done = CliRunner().invoke(app, ["tools", "pins", "--cpu"])
    assert done.exit_code == 0
    found = [Requirement(line) for line in done.stdout.splitlines() if not line.startswith("#")]
    assert {"torch", "torchvision", "transformers"} <= {one.name for one in found}
    assert all(str(one.specifier).startswith("==") for one in found)


def test_two_kinds_are_refused() -> None:
    done = CliRunner().invoke(app, ["tools", "pins", "--cpu", "--trackers"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "give one of --cpu and --trackers"


def test_a_machine_is_asked_for_its_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    for code, file in ((0, "gpu.txt"), (9, "cpu-py31")):  # 9: the program is there and the driver is not
        program.write_text(f"#!/bin/sh\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert file in pins.chosen()[1]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "for a CPU" in pins.chosen()[1]


def test_a_python_that_was_not_resolved_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "NEWEST", (3, 9))
    assert "; they were resolved up to Python 3.9" in pins.chosen("cpu")[1]


def test_the_command_is_one_of_a_group() -> None:
    group = typer.Typer()
    command.register(group)
    assert [one.callback for one in group.registered_commands] == [command.pins]
