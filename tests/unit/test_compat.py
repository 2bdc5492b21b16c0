"""torchvision next to a CPU-only torch: by our call, and for what else runs in a process that imports vlmrl. Others are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = "import torchvision.transforms.v2; from transformers import AutoProcessor, Qwen2_5_VLProcessor; print('fine')"


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all packages of this one and none of its start-up files (`.pth`): nothing runs before the program."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (target,) = folder.glob("lib/python*/site-packages")
    for source in {Path(path) for path in sys.path if path.endswith("site-packages")}:
        for entry in source.iterdir():
            if entry.suffix != ".pth":
                (target / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def python(interpreter: Path, code: str, path: Path = ROOT, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=180, check=False, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    "first",
    [
        "import vlmrl",
        pytest.param(
            "from vlmrl.compat import ensure_torchvision as e; a, b = e(), e(); assert a == b in ('native', 'shimmed')",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import sys; sys.path.insert(0, 'benchmarks/start'); import sitecustomize; import importlib; importlib.reload(sitecustomize)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_plain_imports_work_after_ours(interpreter: Path, first: str) -> None:
    assert python(interpreter, f"{first}; {NEEDED}", cwd=ROOT) == "fine"


def test_the_policys_processor_needs_nothing_before_it(interpreter: Path, tiny_files: tuple[Path, Path]) -> None:
    code = f"from vlmrl.policy.load import load_processor; print(type(load_processor({str(tiny_files[0])!r}).processor).__name__)"
    assert python(interpreter, code) == "Qwen2_5_VLProcessor"


def test_importing_the_package_is_light(interpreter: Path) -> None:
    heavy = "('torch', 'torchvision', 'transformers', 'numpy', 'pydantic')"
    assert python(interpreter, f"import vlmrl, sys; print([name for name in {heavy} if name in sys.modules])") == "[]"
    finders = "[type(finder).__name__ for finder in sys.meta_path].count('_BeforeTorchvision')"
    assert python(interpreter, f"import vlmrl, sys, vlmrl.compat as c; c.install_hook(); print({finders})") == "1"


def test_the_checkout_that_is_first_on_the_path_is_imported(interpreter: Path, tmp_path: Path) -> None:
    """Also where another one is found before: by an environment's start-up file, or as the working directory of another program."""
    other = tmp_path / "vlmrl"
    other.mkdir()
    (other / "__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import vlmrl; print(vlmrl.__file__)"
    assert python(interpreter, code) == str(other / "__init__.py")
