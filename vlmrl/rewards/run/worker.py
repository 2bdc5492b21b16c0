"""The main program of a reward worker process: reads calls from a pipe, runs the reward, writes the scores to another.

It starts without torch. What a reward prints goes to a pipe that the parent reads; the channels of the protocol are on descriptors
of their own, so that neither `input()` nor a print can disturb them. Working directory and environment are put back after each
call, so that a score does not depend on which calls came before. When the parent is gone, so is the worker with all it has started.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vlmrl.protocols import reward as registry
from vlmrl.rewards.run.contract import OUTPUT_CHARS, ContractError, contract_problem
from vlmrl.rewards.run.wire import decode_call

PR_SET_PDEATHSIG = 1
CPU_SLACK_SECONDS = 30
STATUS = Path("/proc/self/status")


def main(setup: Mapping[str, Any]) -> None:
    """Serve until the parent closes the pipe. `setup`: `parent` (its process id), `replies` (descriptor), `memory` (bytes)."""
    worker = _Worker(setup["memory"])
    serve(setup, lambda request: worker.load(request) if "name" in request else worker.score(request))


def serve(setup: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Answer requests until the parent closes the pipe, then end with all that was started here."""
    _die_with(setup["parent"])
    # requests move to a descriptor of their own and standard input becomes empty: `input()` in a reward must not read them
    requests = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    replies: int = setup["replies"]
    # a process that a reward starts must neither write here nor hold the pipe open
    os.set_inheritable(replies, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _write(replies, {"number": 0})
    while line := requests.readline():
        request = json.loads(line)
        _write(replies, {**answer(request), "number": request["number"]})
    _end()


class _Worker:
    """The columns loaded so far, by number."""

    def __init__(self, memory: int):
        self.memory = memory
        self.columns: dict[int, Callable[..., Any]] = {}
        self.folder, self.environment = os.getcwd(), dict(os.environ)

    def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Import a column's modules and bind its arguments. The limit on memory counts from what is in use then.

        Returns:
            Empty; a `reason` with a `detail` where it failed.
        """
        lift_memory_limit()
        try:
            for name in request["modules"]:
                importlib.import_module(name)
            self.columns[request["column"]] = registry.bind(request["name"], request["arguments"])
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 (the reward border: reported, counted, never a score)
            return fault(f"raised:{type(error).__name__}", error)
        limit_memory(self.memory)
        return {}

    def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Score a group: `values`, or a `reason` with a `detail`."""
        limit_cpu(request["deadline"])
        try:
            group, ctx = decode_call(request["call"])
            returned: Any = self.columns[request["column"]](group, ctx)
            problem = contract_problem(returned, len(group.rollouts))
            if problem is not None:
                return {"reason": "contract", "detail": f"row '{group.prompt.sample.id}': {problem}"}
            return {"values": [None if value is None else float(value) for value in returned]}
        except MemoryError as error:  # a reason of its own, upon which the parent replaces this worker
            return fault("memory", error)
        except ContractError as error:
            return {"reason": "contract", "detail": str(error)[:OUTPUT_CHARS]}
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 (the reward border: reported, counted, never a score)
            return fault(f"raised:{type(error).__name__}", error)
        finally:
            self._put_back()

    def _put_back(self) -> None:
        os.chdir(self.folder)
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)


def fault(reason: str, error: BaseException) -> dict[str, Any]:
    return {"reason": reason, "detail": "".join(traceback.format_exception(error))[-OUTPUT_CHARS:]}


def memory_in_use() -> int | None:
    """Read the bytes of private writable memory, as RLIMIT_DATA counts them; None where the kernel does not say (not Linux)."""
    if not STATUS.exists():
        return None
    found = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def limit_memory(more: int) -> None:
    """Let this process take `more` bytes beyond what it has. Without effect where `memory_in_use` is unknown.

    RLIMIT_DATA rather than RLIMIT_AS: address space that is only reserved (thread stacks and arenas, what torch and CUDA map) is
    many times what is used, and would be refused although it costs nothing.
    """
    used = memory_in_use()
    if used is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = used + more if hard == resource.RLIM_INFINITY else min(used + more, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def lift_memory_limit() -> None:
    """Undo `limit_memory`: the modules of a column may be large."""
    if STATUS.exists():
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def limit_cpu(deadline: float) -> None:
    """Limit processor time, as a second line behind the parent's deadline: an orphan that nobody kills ends by itself."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # processor seconds of all threads together, hence times the cores; counted from the start of the process
    soft = math.ceil(used.ru_utime + used.ru_stime + deadline * (os.cpu_count() or 1)) + CPU_SLACK_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _die_with(parent: int) -> None:
    """End when the thread that started this process ends, also in the middle of a call (Linux; elsewhere: at the next read)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # the parent may have gone before the signal was asked for
    if os.getppid() != parent:
        _end()


def _end() -> None:
    """Kill this process and what it has started (it leads a process group of its own)."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _write(descriptor: int, message: Mapping[str, Any]) -> None:
    rest = json.dumps(message).encode() + b"\n"
    while rest:
        rest = rest[os.write(descriptor, rest) :]
