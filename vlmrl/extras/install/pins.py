"""The constraints file for this Python, and for a CPU or a GPU: `vlmrl tools pins`, or `python -m vlmrl.extras.install.pins`.

The second form needs only the standard library, so it runs after `pip install --no-deps vlmrl`, before anything else is installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from vlmrl import paths

Kind = Literal["cpu", "gpu", "trackers"]
FOR: Mapping[Kind, str] = {"cpu": "a CPU", "gpu": "an NVIDIA GPU", "trackers": "an environment with all trackers"}
NEWEST = (3, 13)
"""The newest Python for which the pins were resolved (`scripts/pins.sh --check`)."""


def constraints(kind: Kind, python: tuple[int, int] | None = None) -> Path:
    """Return the constraints file for a machine.

    Args:
        kind: what torch is for; `trackers` for an environment with every tracker of `run.trackers`.
        python: major and minor version; None for this interpreter's.
    """
    old = (python or sys.version_info[:2]) < (3, 11)
    return paths.shipped("constraints", ("cpu-py310.txt" if old else "cpu-py311.txt") if kind == "cpu" else f"{kind}.txt")


def has_gpu() -> bool:
    """Return whether the driver's `nvidia-smi` lists a GPU. torch, which may not be installed yet, is not asked."""
    program = shutil.which("nvidia-smi")
    return program is not None and subprocess.run([program, "-L"], capture_output=True, check=False).returncode == 0


def chosen(kind: Kind | None = None) -> tuple[Path, str]:
    """Return the constraints file for this machine, and a line that says for what it is.

    Args:
        kind: None looks for a GPU (`has_gpu`).
    """
    kind = kind or ("gpu" if has_gpu() else "cpu")
    path = constraints(kind)
    major, minor = sys.version_info[:2]
    line = f"pins: {path.name}, for {FOR[kind]}, Python {major}.{minor}"
    if (major, minor) > NEWEST:
        line += f"; they were resolved up to Python {NEWEST[0]}.{NEWEST[1]}, so pip may find no build of some of them"
    return path, line


def main() -> None:
    """Copy the pins to stdout; the line about them goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m vlmrl.extras.install.pins", description="Print the pins for pip install -c.")
    group = parser.add_mutually_exclusive_group()
    for kind, meant in FOR.items():
        group.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=f"for {meant}")
    path, line = chosen(parser.parse_args().kind)
    sys.stderr.write(f"{line}\n")
    with path.open(encoding="utf-8") as file:
        shutil.copyfileobj(file, sys.stdout)


if __name__ == "__main__":
    main()
