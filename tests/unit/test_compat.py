"""torchvision next to a CPU-only torch: by our call, and by the hook that the set-up puts into the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NEEDED = "import torchvision.transforms.v2; from transformers import AutoProcessor; print('fine')"


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["", "import torch; "])
def test_hook_makes_plain_imports_work(first: str) -> None:
    assert python(f"from vlmrl.compat import install_hook; install_hook(); install_hook(); {first}{NEEDED}") == "fine"


def test_call_makes_plain_imports_work_and_repeats() -> None:
    code = f"from vlmrl.compat import ensure_torchvision as e; a, b = e(), e(); assert a in ('native', 'shimmed'); {NEEDED}"
    assert python(code) == "fine"


def test_both_together() -> None:
    code = f"from vlmrl.compat import ensure_torchvision, install_hook; install_hook(); ensure_torchvision(); {NEEDED}"
    assert python(code) == "fine"


def test_hook_is_light() -> None:
    assert python("from vlmrl.compat import install_hook; install_hook(); import sys; print('torch' in sys.modules)") == "False"
