"""The walks of `walks/`: what users of each kind type, from an empty folder to their own result. Here with a few steps each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = sorted(path for path in (Path(__file__).parent / "walks").glob("*.sh") if path.name != "common.sh")
LACKS = 77
"""Exit code of a walk that needs what this machine has not."""


@pytest.mark.slow
@pytest.mark.parametrize("script", WALKS, ids=lambda path: path.stem)
def test_walk(script: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vlmrl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vlmrl "$@"\n')  # the package of this checkout
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "QUICK": "1"}
    done = subprocess.run(
        ["bash", str(script), str(tmp_path / "walk")], capture_output=True, text=True, timeout=1800, env={**os.environ, **variables}
    )
    if done.returncode == LACKS:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert " commands\n" in done.stdout
