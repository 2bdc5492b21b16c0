"""A rollout server with a real vLLM in a process of its own, as the command starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "COLUMNS": "200"}
START = 300.0
"""Seconds in which vLLM has to be there."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    address: str
    token: Path


def command(recipe: Path, listen: str, token: Path) -> list[str]:
    """What starts a server for a recipe."""
    return [sys.executable, "-m", "vlmrl", "serve", "--rollouts", str(recipe), "--listen", listen, "--token-file", str(token)]


@contextmanager
def serving(recipe: Path, environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[Served]:
    """A server on a free port of this machine; its token and what it says lie beside the recipe. It is killed at the end."""
    said, token = recipe.with_name("server.txt"), recipe.with_name("token")
    with said.open("w") as out:
        process = subprocess.Popen(
            command(recipe, "127.0.0.1:0", token), stdout=out, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
        )
        try:
            yield Served(process, address(process, said), token)
        finally:
            process.kill()
            process.wait(30)


def address(process: subprocess.Popen[str] | subprocess.Popen[bytes], said: Path) -> str:
    """Where it listens, waited for.

    Raises:
        AssertionError: it ended, or does not come up.
    """
    end = time.monotonic() + START
    while time.monotonic() < end:
        found = re.search(r"rollout server on (\S+):", said.read_text(encoding="utf-8"))
        if found:
            return found.group(1)
        assert process.poll() is None, said.read_text(encoding="utf-8")[-3000:]
        time.sleep(0.5)
    raise AssertionError(said.read_text(encoding="utf-8")[-3000:])
