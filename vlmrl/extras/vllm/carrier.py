"""Carries buckets of weights from the trainer to the workers of one server, by a process group of torch that is theirs alone.

The trainer is rank 0, the workers of the server follow. Every server has a group of its own, so one that is lost hangs no other. A group
needs no vLLM, so the trainer's environment and the server's may differ. Nobody waits blindly: who sends or takes looks again and again
whether the other side is still there, and gives the group up where it is not.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

Kind = Literal["gloo", "nccl"]
JOIN = 60.0
"""Seconds in which all members of a group have to be there."""
LONGEST = 60.0
"""Seconds in which a bucket has to be through."""
_ALIGNED = 16
_PAUSES = (1e-4, 0.02)
"""Seconds between two looks, at first and at most."""


class CarrierError(RuntimeError):
    """A group is broken, or was given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Where the members of a group meet."""

    host: str
    """Address of the trainer, as the server sees it."""
    port: int
    world: int
    kind: Kind
    name: str


def facing(host: str, port: int) -> str:
    """This machine's address on the way to another; nothing is sent.

    Raises:
        OSError: there is no way.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(address)
        return str(way.getsockname()[0])


def meeting(host: str, port: int) -> socket.socket:
    """A free port for a group to meet at, which listens on the way to `host` alone.

    Raises:
        OSError: there is no way.
    """
    own = facing(host, port)
    return socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)


class Carrier:
    """One member of a group."""

    def __init__(
        self,
        line: Line,
        rank: int,
        *,
        device: torch.device,
        meets: socket.socket | None = None,
        lost: Callable[[], str | None] = lambda: None,
    ):
        """Wait for the other members.

        Args:
            device: of the tensors, which with gloo are on the CPU whatever is said here.
            meets: on rank 0, the port of the line (`meeting`).
            lost: why there is no use in waiting any longer; asked again and again on rank 0.

        Raises:
            CarrierError: they did not come.
        """
        self.line, self.rank = line, rank
        self.device = torch.device("cpu") if line.kind == "gloo" else device
        self._work: Any = None
        try:
            store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
                line.host,
                line.port,
                is_master=meets is not None,
                timeout=timedelta(seconds=JOIN),
                wait_for_workers=False,
                master_listen_fd=None if meets is None else meets.detach(),
            )
            own = dist.PrefixStore(line.name, store)  # pyright: ignore[reportPrivateImportUsage]
            if rank == 0:
                _wait(lambda: own.check([f"here {n}" for n in range(1, line.world)]), JOIN, lost)
            else:
                own.set(f"here {rank}", "1")
            self._group: Any = _group(own, line, rank)
        except (RuntimeError, OSError) as error:  # torch's are RuntimeErrors
            raise CarrierError(f"the group of {line.world} did not meet at {line.host}:{line.port}: {str(error)[:300]}") from error

    def cast(self, room: torch.Tensor, lost: Callable[[], str | None] = lambda: None) -> None:
        """Send a tensor from rank 0 to all others, or take it.

        Args:
            lost: why there is no use in waiting any longer; asked again and again.

        Raises:
            CarrierError: the group is broken, or `lost` said so. It is of no use afterwards.
        """
        how = dist.BroadcastOptions()
        how.rootRank, how.rootTensor, how.asyncOp = 0, 0, True
        try:
            self._work = self._group.broadcast([room], how)
            _wait(self._work.is_completed, LONGEST, lost)
            self._work.wait()
        except RuntimeError as error:
            raise error if isinstance(error, CarrierError) else CarrierError(str(error)[:300]) from error
        if room.is_cuda:
            torch.cuda.synchronize(room.device)
        self._work = None

    def leave(self) -> None:
        """Give the group up, without waiting for what is under way in it."""
        group, work, self._group, self._work = self._group, self._work, None, None
        threading.Thread(target=_end, args=(self.line.kind, group, work), name="leaving a group", daemon=True).start()


def _wait(there: Callable[[], bool], seconds: float, lost: Callable[[], str | None]) -> None:
    """
    Raises:
        CarrierError: it did not come in time, or will not come any more.
    """
    end = time.monotonic() + seconds
    pause, most = _PAUSES
    while not there():
        why = f"not within {seconds:g} s" if time.monotonic() > end else lost()
        if why is not None:
            raise CarrierError(why)
        time.sleep(pause)
        pause = min(most, 2 * pause)


def _group(store: Any, line: Line, rank: int) -> Any:
    if line.kind == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=LONGEST)
        return dist.ProcessGroupNCCL(store, rank, line.world, options)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    # the address on the way to the trainer: by itself gloo takes that of the machine's name, which may be one that nobody else can reach
    own = line.host if rank == 0 else facing(line.host, line.port)
    # both sides connect at once: a trainer of several ranks has TORCH_GLOO_LAZY_INIT (scale/join.py) and a server has not, and gloo reads
    # beyond the end of what a lazy member says of itself, which killed the worker of the server
    options._devices = [gloo.create_device(hostname=own, lazy_init=False)]
    options._timeout, options._threads = timedelta(seconds=JOIN), 1
    return gloo(store, rank, line.world, options)


def _end(kind: Kind, group: Any, work: Any) -> None:
    """Close a group; its memory must not go before what is under way has failed."""
    if work is None:
        return
    with suppress(RuntimeError):  # what is under way fails, as was to be expected
        if kind == "nccl":
            group.abort()  # gloo fails by itself when the other side goes, or in its own time
        work.wait()


def packed(bucket: Sequence[tuple[str, torch.Tensor]]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Tensors as one row of bytes, each at a multiple of 16, and what has to be known to cut it up again (`cut`)."""
    parts: list[torch.Tensor] = []
    for _, tensor in bucket:
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        parts += [raw, raw.new_zeros(-raw.numel() % _ALIGNED)]
    told = {
        "names": [name for name, _ in bucket],
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
        "shapes": [list(tensor.shape) for _, tensor in bucket],
    }
    return torch.cat(parts), told


def cut(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]], take: Callable[[int], torch.Tensor]
) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a row of bytes; `take` gives the row when it is told its length.

    Raises:
        ValueError: what is told does not fit together, or names no type of numbers.
    """
    kinds: list[Any] = [getattr(torch, name, None) for name in dtypes]
    if not len(names) == len(kinds) == len(shapes) or not all(isinstance(kind, torch.dtype) for kind in kinds):
        raise ValueError("names, types and shapes of weights do not fit together")
    sizes = [torch.Size(shape).numel() * kind.itemsize for shape, kind in zip(shapes, kinds, strict=True)]
    row = take(sum(size + -size % _ALIGNED for size in sizes))
    out: list[tuple[str, torch.Tensor]] = []
    place = 0
    for name, kind, shape, size in zip(names, kinds, shapes, sizes, strict=True):
        out.append((name, row[place : place + size].view(kind).view(tuple(shape))))
        place += size + -size % _ALIGNED
    return out
