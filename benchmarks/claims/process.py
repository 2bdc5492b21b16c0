"""Runs one command of `vlmrl` in a process of its own, forked from one in which everything is imported (`preload`).

A run of the benchmark takes a minute or two; importing torch, transformers and the package would be about ten seconds of each.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Of all runs, and of the process that they are forked from: read when libraries are imported."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a command took."""

    cpu: float
    """Seconds of the processor, all threads and child processes."""
    wall: float


def execute(arguments: Sequence[str], log: Path, more: Mapping[str, str]) -> Cost:
    """Run `vlmrl`. What it prints goes behind what is in the log already. Where this process ends, the run is asked to save and to stop.

    Raises:
        BenchmarkError: it failed, with the end of what it printed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    told, tell = multiprocessing.Pipe(duplex=False)
    process = _forking().Process(target=_command, args=(list(arguments), log, dict(more), tell))
    with _LOCK:
        process.start()
        _LIVE.add(process)
    tell.close()
    process.join()
    with _LOCK:
        _LIVE.discard(process)
    if process.exitcode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]) if log.exists() else ""
        raise BenchmarkError(f"vlmrl {' '.join(arguments[:2])} ended with {process.exitcode} (all of it in {log}):\n{tail}")
    with told:
        return Cost(cpu=float(told.recv()), wall=time.perf_counter() - began)


_LIVE: set[BaseProcess] = set()
_LOCK = threading.Lock()


def stop_all() -> None:
    """Ask all runs to save and to stop; whoever waits in `execute` is told that they failed."""
    with _LOCK:
        for process in _LIVE:
            process.terminate()


@functools.cache
def _forking() -> Any:
    """The process to fork from, begun with the environment of runs; this one's stays as it is."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.claims.preload"])
    before = dict(os.environ)
    os.environ |= ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= before
    return context


def _command(arguments: list[str], log: Path, more: dict[str, str], tell: connection.Connection) -> None:
    """In the run's own process."""
    with log.open("ab", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(ROOT)
    os.environ |= more
    sys.argv = ["vlmrl", *arguments]
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from vlmrl.cli import main

    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    tell.send(sum(one.ru_utime + one.ru_stime for one in used))


def _end_with(parent: Any) -> None:
    """Stop this process, as by a signal, when the one that asked for it is gone, however it ended."""
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
