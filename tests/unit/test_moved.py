"""Modules by their earlier names."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from vlmrl.compat import MOVED

NOW = json.loads(MOVED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("old", sorted(NOW))
def test_a_moved_module_is_there_under_both_names(old: str) -> None:
    if NOW[old].startswith("extras.vllm"):
        assert Path(MOVED.parent, *NOW[old].split(".")).with_suffix(".py").exists() or Path(MOVED.parent, *NOW[old].split(".")).is_dir()
        return
    sys.modules.pop(f"vlmrl.{old}", None)
    with pytest.warns(FutureWarning, match=f"vlmrl.{old} is vlmrl.{NOW[old]} now"):
        found = import_module(f"vlmrl.{old}")
    assert found is import_module(f"vlmrl.{NOW[old]}")


def test_what_lies_below_moved_along_and_nothing_is_loaded_twice() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore');"
        "from vlmrl.envs.protocol import Observation, environment;"
        "from vlmrl.extras.agents import protocol; import vlmrl.protocols;"
        "print(Observation is protocol.Observation, environment is vlmrl.protocols.environment, Observation.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["True", "True", "vlmrl.extras.agents.protocol"]


def test_a_name_that_nothing_had_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"vlmrl\.nothing"):
        import_module("vlmrl.nothing")
