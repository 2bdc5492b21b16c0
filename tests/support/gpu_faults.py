"""Faults for the processes that checks of `benchmarks.gpu_check` start: named in its hidden variable, called when such a process begins.

What is heavy is imported where it is broken: some faults need nothing of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
    """Answers are drawn from other seeds in every process."""
    from vlmrl.rollout.engine_hf import HFEngine

    real = HFEngine.generate

    def generate(self: Any, requests: Any, *rest: Any) -> Any:
        own = [dataclasses.replace(one, seeds=tuple(int.from_bytes(os.urandom(7), "big") for _ in one.seeds)) for one in requests]
        return real(self, own, *rest)

    HFEngine.generate = generate


def changed_by_resume() -> None:
    """What a resumed run starts from is not what was saved, by so little that replayed answers still fit."""
    from vlmrl.train import replicas as ddp

    real = ddp.read_tensors

    def read(path: Path) -> dict[str, Any]:
        out = real(path)
        return {name: value * (1 + 1e-6) for name, value in out.items()} if path.name == "weights.safetensors" else out

    ddp.read_tensors = read


def sums_of_one() -> None:
    """A sum over ranks is the rank's own value."""
    from vlmrl.train import dist

    dist.sum_ = lambda value: value


def forgotten_gradients() -> None:
    """A rank keeps its own gradients."""
    from vlmrl.train import dist

    dist.sum_gradients = lambda parameters, bucket=0: None


def asks_in_every_pass() -> None:
    """Ranks agree about something before every backward."""
    from benchmarks.gpu_check import toy
    from vlmrl.train import dist

    real = toy.Plain.__call__

    def call(self: Any, *args: Any) -> Any:
        for _ in range(4):
            dist.gather(0)
        return real(self, *args)

    toy.Plain.__call__ = call


def sums_in_every_pass() -> None:
    """Copies of the whole add up their gradients behind every micro-batch."""
    from torch.distributed.fsdp import FSDPModule

    FSDPModule.set_requires_all_reduce = lambda self, requires_all_reduce, *, recurse=True: None


def one_thread() -> None:
    """An offloaded update has the thread that the launcher gave."""
    from vlmrl.extras.scale import fsdp

    fsdp.spread = lambda optimizer, given: None


def weights_of_before() -> None:
    """The worker of a server keeps what it had: a bucket goes nowhere."""
    from vlmrl.extras.vllm import carrier

    real = carrier.Carrier.cast

    def cast(self: Any, room: Any, lost: Any = lambda: None) -> None:
        real(self, room if self.rank == 0 else room.clone(), lost)

    carrier.Carrier.cast = cast


def sockets_for_every_rank() -> None:
    """Forty connections to each other rank."""
    import socket

    kept.extend(socket.socket() for _ in range(40 * int(os.environ.get("WORLD_SIZE", "1"))))


kept: list[Any] = []


def never_gives_up() -> None:
    """A rank goes on although its neighbour is gone, and nobody watches."""
    from vlmrl.extras.scale import watchdog
    from vlmrl.train import dist

    def patient(real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(value: Any) -> Any:
            try:
                return real(value)
            except RuntimeError:
                return value

        return call

    watchdog.Watchdog = lambda *args, **kwargs: _Nobody()
    dist.sum_, dist.sum_gradients = patient(dist.sum_), patient(dist.sum_gradients)


class _Nobody:
    """Watches over nothing."""

    doing = ""

    def collective(self, name: str) -> Any:
        return contextlib.nullcontext()

    def close(self) -> None:
        pass


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
