"""Ranks of a job as processes of a test, without a launcher: what each does is a function of this module.

They fork from the server that has imported everything once, so a job costs a second and not the imports of each rank.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.runs import _CONTEXT


def run_ranks(world: int, folder: Path, target: Callable[..., None], *arguments: Any, timeout: float = 600) -> None:
    """Call a function on every rank of a job of its own, with the variables that a launcher sets, and wait for the end of all.

    Raises:
        AssertionError: a rank failed, with the end of what it wrote; the others are killed, as a launcher does.
        TimeoutError: they did not end in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = Ranks(target, folder, arguments, world=world, LOCAL_WORLD_SIZE=world)
    end = time.monotonic() + timeout
    try:
        while any(process.exitcode is None for process in job.ranks):
            if time.monotonic() > end:
                raise TimeoutError(f"{world} ranks did not end within {timeout} s: {job.text(0)[-3000:]}")
            for rank, process in enumerate(job.ranks):
                process.join(0.05)
                assert not process.exitcode, f"rank {rank} ended with {process.exitcode}: {job.text(rank)[-4000:]}"
        assert all(process.exitcode == 0 for process in job.ranks), [job.text(rank)[-2000:] for rank in range(world)]
    finally:
        job.close()


class Ranks:
    """Some ranks over gloo; rank 0 holds the store. Each writes to a file, and ends with the exit code of its error."""

    def __init__(self, work: str | Callable[..., None], folder: Path, arguments: Sequence[Any] = (), *, world: int = 2, **environment: Any):
        """`work`: a function of this module by its name, called in a group of processes; or any function, with variables alone."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": world, "OMP_NUM_THREADS": 1} | environment
        target, arguments = (_in_group, (work,)) if isinstance(work, str) else (work, tuple(arguments))
        self.logs = [folder / f"rank{rank}.log" for rank in range(world)]
        self.ranks: list[Any] = []
        for rank in range(world):
            own = {name: str(value) for name, value in (given | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            self.logs[rank].touch()
            self.ranks.append(_CONTEXT.Process(target=_rank, args=(target, arguments, own, str(self.logs[rank]))))
            self.ranks[-1].start()

    def pid(self, rank: int) -> int:
        return int(self.ranks[rank].pid)

    def send(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pid(rank), number)

    def beacon(self, rank: int) -> int:
        """The process that gives signs of life for a rank."""
        (pid,) = beacons(self.pid(rank))
        return pid

    def text(self, rank: int) -> str:
        return self.logs[rank].read_text()

    def wait_for(self, rank: int, pattern: str, timeout: float = 90) -> str:
        """The first line of a rank's output in which the pattern is found."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            found = [line for line in self.text(rank).splitlines() if re.search(pattern, line)]
            if found:
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in: {self.text(rank)[-3000:]}")

    def code(self, rank: int, timeout: float = 60) -> int | None:
        """The exit code; None: it has not ended in time."""
        self.ranks[rank].join(timeout)
        return self.ranks[rank].exitcode

    def close(self) -> None:
        for process in self.ranks:
            if process.is_alive():
                for pid in beacons(int(process.pid)):  # one that is stopped would stay
                    os.kill(pid, signal.SIGKILL)
                process.kill()
            process.join()


def beacons(pid: int) -> list[int]:
    """The processes that give signs of life for a rank, which is a process."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return [child for child in children if b"beacon.py" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _rank(target: Callable[..., None], arguments: Sequence[Any], environment: dict[str, str], log: str) -> None:
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    target(*arguments)


def _in_group(work: str) -> None:
    from vlmrl.errors import VlmrlError
    from vlmrl.train import dist

    try:
        if work == "device_only":
            _without_a_group_for_the_cpu()
        dist.start()
        globals()[work]()
    except VlmrlError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        raise SystemExit(error.exit_code) from None
    finally:
        dist.stop()


def count() -> None:
    """Steps of two collectives each; the total says whether one was lost."""
    import torch

    from vlmrl.train import dist

    total = 0
    for step in range(int(os.environ["STEPS"])):
        dist.doing(f"step {step}")
        total = total * 3 % 1000003 + sum(dist.gather(step * 7 + dist.rank())) + int(dist.sum_(torch.tensor([step])))
        if step == 3:
            print("READY", flush=True)
        time.sleep(0.02)
    print("TOTAL", total, flush=True)


def total(steps: int, world: int = 2) -> int:
    """What `count` prints."""
    value = 0
    for step in range(steps):
        value = value * 3 % 1000003 + sum(step * 7 + rank for rank in range(world)) + world * step
    return value


def slow() -> None:
    """Rank 1 keeps the others waiting twice, with right: it holds the interpreter's lock, then it waits for a judge."""
    from vlmrl.train import dist

    long = int(os.environ["LONG"])
    dist.gather(0)
    if dist.rank() == 1:
        dist.doing("a long C call")
        ctypes.PyDLL(None).sleep(long)  # PyDLL, and not CDLL: no other thread of Python runs meanwhile
    dist.gather(1)
    dist.run_synchronized(lambda: time.sleep(long if dist.rank() == 1 else 0))
    print("DONE", flush=True)


def astray() -> None:
    """The ranks wait for each other in different collectives."""
    import torch.distributed

    from vlmrl.train import dist

    dist.gather(0)
    if dist.rank() == 0:
        dist.gather(1)
    else:
        with dist.collective("another one"):
            torch.distributed.barrier()


def leaves() -> None:
    """Rank 1 ends with an error that the others do not hear of."""
    from vlmrl.train import dist

    dist.gather(0)
    if dist.rank() == 1:
        error = ValueError("a defect")
        dist.leaving(error)
        raise error
    time.sleep(0.5)
    dist.gather(1)


def connected() -> None:
    """Says how many connections to other ranks this one has after the calls that a run makes, and how many files it may open."""
    import resource

    import torch

    from vlmrl.extras.scale.background import Aside
    from vlmrl.extras.scale.lockstep import largest
    from vlmrl.train import dist

    aside = Aside()
    for _ in range(3):
        dist.meet("nothing")
        dist.sum_(torch.ones(3))
        assert len(dist.gather(dist.rank())) == dist.world()
        assert largest([dist.rank()]) == [dist.world() - 1]
        assert len(aside.gather("x" * 5000)) == dist.world()
        torch.distributed.all_reduce(torch.ones(1 << 16))
    links = [os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{file}")]
    print("SOCKETS", sum(link.startswith("socket:") for link in links), *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
    dist.meet("the end")


def _without_a_group_for_the_cpu() -> None:
    """The group of the launcher gets a backend for a device alone, as NCCL's is; says what was asked for."""
    import torch.distributed

    real = torch.distributed.init_process_group

    def only_device(backend: str | None = None, **options: Any) -> None:
        print("ASKED", backend, options["timeout"].total_seconds(), flush=True)
        real(backend="cuda:gloo", **options)

    torch.distributed.init_process_group = only_device


def device_only() -> None:
    """All control traffic, where the group of the launcher has no backend for the CPU."""
    import torch

    from vlmrl.train import dist

    assert dist.gather(dist.rank()) == [0, 1]
    assert dist.sum_(torch.tensor([dist.rank() + 1.0])).tolist() == [3.0]
    assert dist.on_main(lambda: "here") == ("here" if dist.is_main() else None)
    dist.meet("nothing")
    try:
        torch.distributed.all_reduce(torch.ones(1))
    except RuntimeError as error:
        print("CPU TENSOR:", str(error).splitlines()[0], flush=True)
    print("DONE", flush=True)
