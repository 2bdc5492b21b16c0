"""The constraints file for this Python, and for a CPU or a GPU: `vlmrl tools pins`, or `python -m vlmrl.extras.install.pins`.

The second form needs only the standard library, so it runs after `pip install --no-deps vlmrl`, before anything else is installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from vlmrl import paths

NEWEST = (3, 13)
"""The newest Python for which the pins were resolved (`scripts/pins.sh --check`)."""


def constraints(*, gpu: bool, python: tuple[int, int] | None = None) -> Path:
    """Return the constraints file for a machine.

    Args:
        gpu: whether torch is to be the build for NVIDIA GPUs.
        python: major and minor version; None for this interpreter's.
    """
    old = (python or sys.version_info[:2]) < (3, 11)
    return paths.shipped("constraints", "gpu.txt" if gpu else "cpu-py310.txt" if old else "cpu-py311.txt")


def has_gpu() -> bool:
    """Return whether the driver's `nvidia-smi` lists a GPU. torch, which may not be installed yet, is not asked."""
    program = shutil.which("nvidia-smi")
    return program is not None and subprocess.run([program, "-L"], capture_output=True, check=False).returncode == 0


def chosen(gpu: bool | None = None) -> tuple[Path, str]:
    """Return the constraints file for this machine, and a line that says for what it is.

    Args:
        gpu: None looks for a GPU (`has_gpu`).
    """
    path = constraints(gpu=has_gpu() if gpu is None else gpu)
    major, minor = sys.version_info[:2]
    line = f"pins: {path.name}, for {'an NVIDIA GPU' if path.name == 'gpu.txt' else 'a CPU'}, Python {major}.{minor}"
    if (major, minor) > NEWEST:
        line += f"; they were resolved up to Python {NEWEST[0]}.{NEWEST[1]}, so pip may find no build of some of them"
    return path, line


def main() -> None:
    """Copy the pins to stdout; the line about them goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m vlmrl.extras.install.pins", description="Print the pins for pip install -c.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cpu", dest="gpu", action="store_false", default=None, help="for a CPU, also where there is a GPU")
    kind.add_argument("--gpu", dest="gpu", action="store_true", default=None, help="for an NVIDIA GPU, also where none is found")
    path, line = chosen(parser.parse_args().gpu)
    sys.stderr.write(f"{line}\n")
    with path.open(encoding="utf-8") as file:
        shutil.copyfileobj(file, sys.stdout)


if __name__ == "__main__":
    main()
