"""Faults for the processes that checks of `benchmarks.gpu_check` start: named in its hidden variable, called when such a process begins.

What is heavy is imported where it is broken: some faults need nothing of it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import base


def scaled_backend() -> None:
    """`two_call` answers one per cent too much."""
    from vlmrl.policy import attention

    real = attention._BACKENDS["two_call"]
    attention._BACKENDS["two_call"] = lambda *args: real(*args) * 1.01


def drawn_anew() -> None:
    """Answers are drawn with other numbers in every process."""
    from vlmrl.rollout import engine_hf

    real = engine_hf.uniforms

    def draws(seeds: Any, tokens: int) -> Any:
        import numpy as np

        return np.random.Generator(np.random.Philox(int.from_bytes(os.urandom(8), "big"))).random(real(seeds, tokens).shape)

    engine_hf.uniforms = draws


def changed_by_resume() -> None:
    """What a resumed run starts from is not what was saved."""
    from vlmrl.train.stage import open as stage_open

    real = stage_open.read_tensors

    def read(path: Path) -> dict[str, Any]:
        out = real(path)
        return {name: value * 1.001 for name, value in out.items()} if path.name == "weights.safetensors" else out

    stage_open.read_tensors = read


def sums_of_one() -> None:
    """A sum over ranks is the rank's own value."""
    from vlmrl.train import dist

    dist.sum_ = lambda value: value


def forgotten_gradients() -> None:
    """A rank keeps its own gradients."""
    from vlmrl.train import dist

    dist.sum_gradients = lambda parameters, bucket=0: None


def never_gives_up() -> None:
    """A rank goes on although its neighbour is gone."""
    from vlmrl.train import dist

    real = dist.sum_

    def patient(value: Any) -> Any:
        try:
            return real(value)
        except RuntimeError:
            return value

    dist.sum_ = patient


def _instead(run: Callable[[], Any]) -> None:
    """Whatever the check, it does this."""
    base.Check.load = lambda self: lambda settings, report: run()


def raises() -> None:
    def broken() -> None:
        raise ValueError("broken")

    _instead(broken)


def ends() -> None:
    _instead(lambda: os._exit(7))


def crashes() -> None:
    _instead(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def hangs() -> None:
    _instead(lambda: time.sleep(60))


def measures_nothing() -> None:
    _instead(lambda: None)
