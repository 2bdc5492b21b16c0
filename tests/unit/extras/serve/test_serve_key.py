"""What the command says of the key: one that it made, and never the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
from typer.testing import CliRunner, Result

from tests.support import tiny
from tests.support.asgi import ask
from vlmrl.cli import app

KEY = "my-own-key-0123456789"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, dict[str, Any]]]:
    """Runs the command up to where it would answer (or become vLLM): what it said, and with what."""
    model, _ = tiny.make_files(tmp_path, sft=1, train=1, test=1)
    began: dict[str, Any] = {}

    def answer(application: Any, bound: Any, answers: Callable[[], None]) -> None:
        began["app"] = application
        answers()

    def become(path: str, line: list[str], environment: dict[str, str]) -> None:
        began["environment"] = environment

    monkeypatch.setattr("vlmrl.web.listen.run", answer)
    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setenv("MY_KEY", KEY)
    usual = ["serve", str(model), "--port", "0", "--answer-type", "time_span"]

    def command(*more: str) -> tuple[Result, dict[str, Any]]:
        done = CliRunner().invoke(app, [*usual, *more])
        assert done.exit_code == 0, done.output
        return done, began

    return command


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_the_users_own_key_is_never_printed(served: Callable[..., tuple[Result, dict[str, Any]]], engine: str) -> None:
    done, began = served("--key-env", "MY_KEY", "--engine", engine)
    assert KEY not in done.output
    assert KEY not in done.stderr
    assert "that of the variable MY_KEY" in done.output
    if engine == "vllm":
        assert began["environment"]["VLLM_API_KEY"] == KEY
    else:
        headers = [("host", "127.0.0.1"), ("authorization", f"Bearer {KEY}")]
        assert ask(began["app"], "GET", "/nothing", headers=headers).status == 404
        assert ask(began["app"], "GET", "/nothing", headers=headers[:1]).status == 401


def test_a_key_that_was_made_is_said(served: Callable[..., tuple[Result, dict[str, Any]]]) -> None:
    done, began = served()
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("api key:")]
    headers = [("host", "127.0.0.1"), ("authorization", f"Bearer {line.split()[-1]}")]
    assert ask(began["app"], "GET", "/nothing", headers=headers).status == 404
