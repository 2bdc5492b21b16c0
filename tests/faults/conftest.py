"""Fixtures of the faults: the tiny model, and the run that several files hold theirs against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.tiny_world import tiny, tiny_files

__all__ = ["small_run", "tiny", "tiny_files"]


@pytest.fixture(scope="session")
def small_run(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe of `runs.small_config` that ran to its end, and the outcome. Tests leave its folder as they found it."""
    config = runs.small_config(*tiny_files, tmp_path_factory.mktemp("whole"))
    assert runs.run(config) == 0
    return config, runs.outcome(config)
