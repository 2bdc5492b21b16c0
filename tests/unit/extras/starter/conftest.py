"""`vlmrl new` in an empty folder, with the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vlmrl.cli import app


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def new(tiny_files: tuple[Path, Path], here: Path) -> Callable[..., str]:
    """Runs `vlmrl new mine`; an error is raised."""

    def run(*given: str, model: str | None = str(tiny_files[0])) -> str:
        done = CliRunner().invoke(app, ["new", "mine", *given, *([] if model is None else ["--model", model])])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return run
