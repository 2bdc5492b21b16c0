"""Modules that are imported when a name of them is used: with made-up modules here, with transformers and torchvision in a process."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from vlmrl.extras.install import later

ROOT = Path(__file__).parents[4]
HEAVY = "RAN = True\n\n\ndef used():\n    return 'the real one'\n\n\nOTHER = 7\n"


def stand_in() -> str:
    """What `user_of_heavy` gets for `used`."""
    return importlib.import_module("heavy_of_test.part").used()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `heavy_of_test` with a module `part`, and the hook for a module that imports a name of it."""
    (tmp_path / "heavy_of_test").mkdir()
    (tmp_path / "heavy_of_test" / "__init__.py").write_text("")
    (tmp_path / "heavy_of_test" / "part.py").write_text(HEAVY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(later, "LATER", {"user_of_heavy": later.InPlace("heavy_of_test.part", {"used": stand_in})})
    monkeypatch.setattr(sys, "meta_path", [later._Finder(), *sys.meta_path])
    yield tmp_path
    for name in ("user_of_heavy", "heavy_of_test", "heavy_of_test.part"):
        sys.modules.pop(name, None)


def user(folder: Path, text: str) -> ModuleType:
    (folder / "user_of_heavy.py").write_text(text)
    return importlib.import_module("user_of_heavy")


def test_a_name_that_is_not_used_imports_nothing(modules: Path) -> None:
    module = user(modules, "from heavy_of_test.part import used\n")
    assert "heavy_of_test" not in sys.modules
    assert "heavy_of_test.part" not in sys.modules
    assert module.used() == "the real one"
    assert sys.modules["heavy_of_test.part"].RAN


def test_another_name_is_of_the_module_itself(modules: Path) -> None:
    """A newer version of the importing package may want more than what is stood in for."""
    module = user(modules, "from heavy_of_test.part import used, OTHER\n")
    assert module.OTHER == 7
    assert sys.modules["heavy_of_test.part"].RAN
    assert module.used() == "the real one"


def test_a_name_that_is_nowhere_is_an_import_error(modules: Path) -> None:
    with pytest.raises(ImportError, match="nothing"):
        user(modules, "from heavy_of_test.part import nothing\n")


def test_a_module_that_is_there_is_used(modules: Path) -> None:
    there = importlib.import_module("heavy_of_test.part")
    assert user(modules, "from heavy_of_test.part import used\n").used is there.used


def test_an_error_while_it_runs_leaves_no_stand_in(modules: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        user(modules, "from heavy_of_test.part import used\n1 / 0\n")
    assert "heavy_of_test.part" not in sys.modules


def test_names_of_a_module_that_is_there_are_others_for_the_time(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.import_module("heavy_of_test.part")
    real = there.used
    monkeypatch.setattr(later, "LATER", {"user_of_heavy": later.InPlace("heavy_of_test.part", {"used": stand_in}, there=True)})
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with pytest.raises(ZeroDivisionError):
        user(modules, "from heavy_of_test.part import used\n1 / 0\n")
    assert there.used is real
    assert user(modules, "from heavy_of_test.part import used\n").used is stand_in
    assert there.used is real


def test_what_is_taken_out_of_the_compiler_is_so_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def plain(x: int) -> int:
        return x + 1

    def real(function: object) -> object:
        asked.append(function)
        return lambda x: -x

    monkeypatch.setattr("torch.compiler.disable", real)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    made = later.disable(plain)
    assert (made(1), asked, made.__name__) == (2, [], "plain")
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    assert [made(1), made(1), asked] == [-1, -1, [plain]]


REAL = """
import sys
import vlmrl
from vlmrl.compat import ensure_torchvision
from vlmrl.extras.install.later import install
install()
install()
ensure_torchvision()
from transformers import AutoProcessor, Qwen3VLProcessor
import transformers.image_processing_utils
import torchvision.transforms.v2
heavy = ("scipy", "sympy", "accelerate", "torch._dynamo", "torch.distributed.tensor", "transformers.modeling_utils")
assert [name for name in heavy if name in sys.modules] == []
from transformers import processing_utils
from torchvision.ops.roi_align import is_compile_supported
from transformers.utils.type_validators import ACT2FN
assert "gelu" in ACT2FN and "gelo" not in ACT2FN and len(ACT2FN) == len(list(ACT2FN)) > 10
asked = processing_utils.PreTrainedAudioTokenizerBase
assert not isinstance(3, asked)
from transformers.modeling_utils import PreTrainedAudioTokenizerBase
assert isinstance(object.__new__(PreTrainedAudioTokenizerBase), asked)
from torch._dynamo.utils import is_compile_supported as real
assert is_compile_supported("cpu") == real("cpu")
"""


def test_processors_are_read_without_models() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
