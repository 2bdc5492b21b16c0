"""Fixtures with a tiny real model and world, built once per test process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny as tiny_module


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(model folder, world folder)."""
    return tiny_module.make_files(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_files: tuple[Path, Path]) -> tiny_module.Tiny:
    """The loaded tiny policy with its data; tests leave its weights as they found them."""
    return tiny_module.load(*tiny_files)
