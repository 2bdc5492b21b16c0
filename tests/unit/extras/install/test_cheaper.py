"""What is done shortly while torch and transformers are imported gives what they give themselves."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch._library.utils
import transformers
from transformers.utils import import_utils

from vlmrl.extras.install import cheaper, later

ROOT = Path(__file__).parents[4]
MODELS = Path(transformers.__file__).parent / "models"


@pytest.fixture
def thawed() -> Iterator[None]:
    """What is frozen in a test is collected again after it."""
    yield
    gc.unfreeze()


@pytest.fixture
def transformers_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions are put back after the test."""
    for name in ("fetch__all__", "create_import_structure_from_path", "spread_import_structure"):
        monkeypatch.setattr(import_utils, name, getattr(import_utils, name))


def at(levels: int) -> list[str]:
    """Where torch says that a caller is, and where we do."""
    ours = SimpleNamespace(get_source=len)
    cheaper.operators(ours)
    return [asked(levels) for asked in (torch._library.utils.get_source, ours.get_source)]


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_a_place_is_the_one_that_torch_reads_a_file_for(levels: int) -> None:
    real, ours = at(levels)
    assert real == ours
    assert (__file__ in ours) == (levels < 5)


@pytest.mark.usefixtures("transformers_structure")
def test_the_names_of_all_models_are_those_that_transformers_finds() -> None:
    def found() -> list[object]:
        return [import_utils.define_import_structure.__wrapped__(*asked) for asked in ((MODELS, "models"), (str(MODELS / "__init__.py"),))]

    real = found()
    cheaper.structure(import_utils)
    ours = found()
    assert ours == real
    assert len(str(ours)) > 10_000
    ours[0].clear()  # pyright: ignore[reportAttributeAccessIssue]
    assert found() == real, "what is handed out is the caller's"


@pytest.mark.usefixtures("transformers_structure")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1\n",
        '__all__ = ["first"]',
        'x = 1\n__all__ = ["a"]\ny = 2\n__all__ = [\n    "b",\n    "c",\n]\nz = 3\n',
        "    __all__ = []\n# __all__\n",
        '__all__ = ["a"]\n# the word __all__ again\n',
    ],
)
def test_the_last_list_of_names_counts(text: str) -> None:
    real = import_utils.fetch__all__(text)
    cheaper.structure(import_utils)
    assert import_utils.fetch__all__(text) == real


def test_a_version_without_these_functions_is_left_alone() -> None:
    other = SimpleNamespace(define_import_structure=len)
    for change in cheaper.AFTER.values():
        change(other)
    assert vars(other) == {"define_import_structure": len}


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_as_it_was(collects: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with cheaper.resting():
            assert not gc.isenabled()
        assert gc.isenabled() == collects
        assert gc.get_freeze_count() > 0
        with pytest.raises(ZeroDivisionError), cheaper.resting():
            raise ZeroDivisionError
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.usefixtures("thawed")
def test_a_module_keeps_its_own_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large_of_test.py").write_text("import gc\n\nRESTED = not gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(later, "UNCOLLECTED", ("large_of_test",))
    monkeypatch.setattr(cheaper, "UNCOLLECTED", ("large_of_test",))
    monkeypatch.setattr(cheaper, "AFTER", {"large_of_test": lambda module: setattr(module, "CALLED", True)})
    monkeypatch.setattr(sys, "meta_path", [later._Finder(), *sys.meta_path])
    try:
        module = importlib.import_module("large_of_test")
        assert (module.RESTED, module.CALLED, type(module.__loader__).__name__) == (True, True, "SourceFileLoader")
        assert module.__spec__ is not None
        assert module.__spec__.loader is module.__loader__
    finally:
        del sys.modules["large_of_test"]


REAL = """
import gc
from vlmrl.extras.install.later import install
install()
import torch, transformers, vlmrl.compat
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert [type(one.__spec__.loader).__name__ for one in (torch, transformers)] == ["SourceFileLoader"] * 2
from torch._library import utils
from transformers.utils import import_utils
assert utils.get_source.__module__ == "vlmrl.extras.install.cheaper"
assert import_utils.create_import_structure_from_path.__code__.co_name == "create_once"
vlmrl.compat.ensure_torchvision()
import torchvision.models
"""


def test_a_command_imports_them_so() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
