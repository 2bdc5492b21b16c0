"""A rollout server with a real vLLM in a process of its own, as the command starts it."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.vllm_server import end_group

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "COLUMNS": "200"}
START = 300.0
"""Seconds in which vLLM has to be there."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    process: subprocess.Popen[Any]
    address: str
    token: Path


def command(what: str, listen: str, token: Path) -> list[str]:
    """What starts a server: for a recipe, or of a model that is a teacher."""
    option = "--rollouts" if what.endswith(".yaml") else "--teacher"
    return [sys.executable, "-m", "vlmrl", "serve", option, what, "--listen", listen, "--token-file", str(token)]


@contextmanager
def serving(
    recipe: Path, environment: Mapping[str, str] = ENVIRONMENT, *, listen: str = "127.0.0.1:0", more: Sequence[str] = ()
) -> Iterator[Served]:
    """A server on a free port of this machine; its token and what it says lie beside the recipe, or the folder of the teacher. It is ended
    with the block.

    Args:
        more: of the command, overrides of the recipe or options of vLLM.
    """
    token = recipe.with_name("token")
    said = next(path for n in itertools.count() if not (path := recipe.with_name(f"server{n}.txt")).exists())
    with said.open("w") as out:
        process = subprocess.Popen(
            [*command(str(recipe), listen, token), *more],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,  # vLLM's engine is a process of its own, and outlives a server that is killed
        )
        try:
            yield Served(process, address(process, said), token)
        finally:
            end_group(process)


def address(process: subprocess.Popen[str] | subprocess.Popen[bytes], said: Path) -> str:
    """Where it listens, waited for.

    Raises:
        AssertionError: it ended, or does not come up.
    """
    end = time.monotonic() + START
    while time.monotonic() < end:
        found = re.search(r"(?:rollout|teacher) server on (\S+):", said.read_text(encoding="utf-8"))
        if found:
            return found.group(1)
        assert process.poll() is None, said.read_text(encoding="utf-8")[-3000:]
        time.sleep(0.5)
    raise AssertionError(said.read_text(encoding="utf-8")[-3000:])
