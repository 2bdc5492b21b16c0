"""A processor that needs a package which is not there: the error names the extra that brings it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from vlmrl.errors import ConfigError
from vlmrl.extras.families.conform.subject import open_small, open_subject
from vlmrl.extras.families.tiny import write_tiny
from vlmrl.families import packages
from vlmrl.policy.load import load_processor


@pytest.fixture
def smolvlm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny SmolVLM on a machine without num2words, also where it is there."""
    module: Any = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    monkeypatch.setattr(module, "num2words", lambda number, **_: str(number))
    write_tiny("smolvlm", tmp_path)
    monkeypatch.setattr(module, "num2words", None)
    return tmp_path


def test_a_missing_package_is_named_with_its_extra(smolvlm: Path) -> None:
    wanted = r"needs the package num2words, which is not here; pip install 'vlmrl\[smolvlm\]'"
    with pytest.raises(ConfigError, match=rf"model\.path: the processor of '{re.escape(str(smolvlm))}' {wanted}"):
        load_processor(str(smolvlm), family="generic")
    for tries in (open_subject, open_small):
        with pytest.raises(ConfigError, match=wanted):
            tries(str(smolvlm))


def test_another_package_is_named_as_transformers_does() -> None:
    told = packages.what_is_missing(ImportError("requires the Foo library\nmore"), "the processor of 'm'")
    assert told == "the processor of 'm' needs a package that is not here: requires the Foo library"


def test_extras_are_declared() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    for package, extra in packages.EXTRAS.items():
        assert re.search(rf'^{extra} = \["{package}', project, re.M), extra
