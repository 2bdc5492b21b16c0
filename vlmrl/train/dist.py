"""Data parallelism: who am I, gradient sums, and a barrier that carries errors.

A launcher starts the processes (`torchrun`, `accelerate launch`, or slurm through `torchrun`: `docs/launch.md`); every rank holds the
whole model. Gradients are summed by hand after the last micro-batch, since the loss is already divided by denominators counted over all
ranks. So no rank waits inside a forward, and ranks may have different numbers of micro-batches.

There are two groups. Control traffic (objects, counts, errors) goes over gloo on the CPU, in a group of its own: there a rank may wait for
another as long as that one lives, since it may rightly wait for a judge. Tensors of the device go over its own library (NCCL on CUDA),
where a call may take no longer than the run's patience; the ranks meet in the first group before they enter the second, so no rank ever
waits for a judge, a disk or a long answer within a call of the device.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as torch_dist

from vlmrl.errors import VlmrlError
from vlmrl.registry import Catalogue

if TYPE_CHECKING:
    from vlmrl.train.watchdog import Waits, Watchdog

T = TypeVar("T")

_KEY = "vlmrl/store"
_LIMIT = timedelta(hours=24)
"""Of a collective of the control group. Whoever is lost is given up within seconds (`train.watchdog`); who lives is waited for."""
_ROOM = 2048
"""Bytes of an object that go in one call."""
SEVERAL: Catalogue[Callable[..., Any]] = Catalogue("function of several ranks")
"""What a run of one process does without, and nobody else may."""
_control: torch_dist.ProcessGroup | None = None
_watchdog: Watchdog | None = None
"""Of this process; None where it is the only one."""


class RankFailed(VlmrlError):
    """Another rank failed; its message and trace are inside, and its exit code is this one's."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def start(patience: float | None = None, *, offloads: bool = False) -> None:
    """Join the process group when a launcher made one; else do nothing.

    Args:
        patience: seconds that a collective may take once all ranks have come to it (default: ten minutes). The environment comes first.
        offloads: whether gradients lie in the machine's memory, and are summed there.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch_dist.is_initialized():
        from accelerate import PartialState

        from vlmrl.train import watchdog  # only here: a run of one process does without

        waits = watchdog.waits(patience)
        cuda = torch.cuda.is_available()
        if cuda and (local := int(os.environ.get("LOCAL_RANK", "0"))) < torch.cuda.device_count():
            torch.cuda.set_device(local)
        # a call of NCCL that takes longer than the patience ends the process, and does not hang on
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        # else gloo connects each rank with each other one in every group, also where a call goes to a few of them alone
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        raise_descriptors()
        backend = backend_of(cuda=cuda, offloads=offloads)
        longest = timedelta(seconds=waits.patience)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            own, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            torch_dist.init_process_group(backend, store=_fresh_store(own, longest), rank=own, world_size=count, timeout=longest)
        else:
            torch_dist.init_process_group(backend, timeout=longest)
        PartialState(cpu=not cuda)  # for accelerate's trackers
        # a process that ends with the group's threads running aborts now and then, and its exit code with it
        atexit.register(stop)
        _start_control(waits)


def backend_of(*, cuda: bool, offloads: bool) -> str:
    """Of the default group: the device's alone where only tensors of the device go through it. A backend for the CPU, and one in every
    group that is cut out of it, costs each rank its connections."""
    if not cuda:
        return "gloo"
    return "cpu:gloo,cuda:nccl" if offloads else "nccl"


def raise_descriptors() -> None:
    """Let this process have as many open files as its hard limit allows: connections to hundreds of ranks are more than the usual
    soft limit of 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fresh_store(number: int, patience: timedelta) -> Any:
    """A store of this start alone, held by rank 0.

    The launcher's outlives its ranks: after a restart a rank would find there where the others were before, and call at ports where nobody
    is any more. So rank 0 opens another one and says there where. Who reads what an earlier one said finds nobody, and reads again.
    """
    from vlmrl.train import watchdog

    library: Any = torch_dist
    master = os.environ["MASTER_ADDR"]
    launcher = library.TCPStore(master, int(os.environ["MASTER_PORT"]), is_master=False, timeout=patience)
    if number == 0:
        host, token = watchdog.address(master), secrets.token_hex(16)
        own = library.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=patience)
        own.set(_KEY, token)
        launcher.set(_KEY, json.dumps([host, own.port, token]))
        return own
    end = time.monotonic() + patience.total_seconds()
    while True:
        host, port, token = json.loads(launcher.get(_KEY))
        try:
            own = library.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=2))
            if own.get(_KEY).decode() == token:
                own.set_timeout(patience)
                return own
        except RuntimeError:  # that rank 0 has gone; the new one has not spoken yet
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def _start_control(waits: Waits) -> None:
    """The group of the control traffic, and who watches over the ranks."""
    global _control, _watchdog
    from vlmrl.train import watchdog

    group = torch_dist.new_group(backend="gloo", timeout=_LIMIT, group_desc="control")
    assert not isinstance(group, int), "every rank is a member"
    _control = group
    listener = watchdog.listen() if is_main() else None
    told: list[Any] = [None]
    if listener is not None:
        own = watchdog.address(os.environ.get("MASTER_ADDR", "localhost"))
        told = [(own, listener.getsockname()[1], secrets.token_hex(16))]
    torch_dist.broadcast_object_list(told, src=0, group=_control)
    host, port, token = told[0]
    _watchdog = watchdog.Watchdog(rank=rank(), world=world(), address=(host, port), token=token, listener=listener, waits=waits)


def control() -> torch_dist.ProcessGroup | None:
    """The group of the control traffic: gloo, on the CPU, whatever the device is. None in a run of one process."""
    return _control


def doing(what: str) -> None:
    """Say what the run is at (`stage 'rl', step 3`), for the messages of the other ranks should this one hang."""
    if _watchdog is not None:
        _watchdog.doing = what


def leaving(error: BaseException) -> None:
    """Say why this rank is about to leave, for the others should they wait for it."""
    if _watchdog is not None:
        _watchdog.doing = f"{_watchdog.doing}; it ended with: {(str(error).strip() or type(error).__name__).splitlines()[0]}"


def collective(name: str) -> AbstractContextManager[None]:
    """Around every block in which this rank waits for the others, in the same order on all ranks (`watchdog.Watchdog.collective`)."""
    return nullcontext() if _watchdog is None else _watchdog.collective(name)


def meet(name: str) -> None:
    """Wait until all ranks are here. Before calls of the device's library, in which nobody should wait for a rank that is still at work."""
    if world() > 1:
        with collective(f"meeting for {name}"):
            torch_dist.barrier(group=_control)


def world() -> int:
    return torch_dist.get_world_size() if torch_dist.is_initialized() else 1


def rank() -> int:
    return torch_dist.get_rank() if torch_dist.is_initialized() else 0


def is_main() -> bool:
    return rank() == 0


def gather(value: T) -> list[T]:
    """`value` of every rank, in rank order, on every rank."""
    if world() == 1:
        return [value]
    with collective("gather"):
        return _gathered(value, _control)


def _gathered(value: T, group: Any) -> list[T]:
    """In one call where the value is small on every rank, else in two. A call is a round over all ranks, whatever its bytes are."""
    objects: Any = torch_dist.distributed_c10d
    own, size = objects._object_to_tensor(value, torch.device("cpu"), group)
    head = torch.zeros(_ROOM, dtype=torch.uint8)
    head[:8] = size.view(torch.uint8)
    fits = min(len(own), _ROOM - 8)
    head[8 : 8 + fits] = own[:fits]
    heads = _all(head, group)
    sizes = [int(one[:8].view(torch.int64)) for one in heads]
    found = [one[8:] for one in heads]
    if max(sizes) > _ROOM - 8:
        found = _all(torch.nn.functional.pad(own, (0, max(sizes) - len(own))), group)
    return [objects._tensor_to_object(one.clone(), size, group) for one, size in zip(found, sizes, strict=True)]


def _all(own: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """A tensor of every rank, all of one size."""
    everyone = list(own.new_empty(torch_dist.get_world_size(group), len(own)))
    torch_dist.all_gather(everyone, own, group=group)
    return everyone


def run_synchronized(fn: Callable[[], T]) -> T:
    """Run local work that may fail, then agree: every rank goes on, or every rank raises.

    `fn` must not contain collectives. Raises the local error where there is one, else `RankFailed` with the origin's trace.
    """
    return _agreed(fn, gather)


def _agreed(fn: Callable[[], T], gather: Callable[[Any], list[Any]]) -> T:
    error: BaseException | None = None
    result: Any = None
    try:
        result = fn()
    except Exception as caught:  # noqa: BLE001 (re-raised below, after the other ranks know)
        error = caught
    own = None if error is None else ("".join(traceback.format_exception(error)), int(getattr(error, "exit_code", 70)))
    failures = gather(own)
    if error is not None:
        raise error
    for origin, failure in enumerate(failures):
        if failure is not None:
            raise RankFailed(f"rank {origin} failed:\n{failure[0]}", failure[1])
    return result


def on_main(fn: Callable[[], T]) -> T | None:
    """Run `fn` on rank 0 only; its failure is every rank's failure."""
    return run_synchronized(fn if is_main() else lambda: None)


class Aside:
    """The ranks once more, for a thread beside the main one: a group of its own, so that its calls and those of the main thread (`gather`
    and the others of this module, which are otherwise the same) cannot meet. Every rank makes it at the same place."""

    def __init__(self) -> None:
        self._group: Any = torch_dist.new_group(backend="gloo", timeout=_LIMIT, group_desc="aside") if world() > 1 else None

    def control(self) -> torch_dist.ProcessGroup | None:
        return self._group

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Not watched: a rank that is lost is noticed by the main thread's calls, or ends this one with an error."""
        del name
        return nullcontext()

    def gather(self, value: T) -> list[T]:
        if self._group is None:
            return [value]
        return _gathered(value, self._group)

    def run_synchronized(self, fn: Callable[[], T]) -> T:
        return _agreed(fn, self.gather)

    def on_main(self, fn: Callable[[], T]) -> T | None:
        return self.run_synchronized(fn if is_main() else lambda: None)


def sum_(value: torch.Tensor) -> torch.Tensor:
    """Sum of a small tensor over ranks, in place; on the CPU, wherever the tensor is."""
    if world() > 1:
        here = value.cpu()
        with collective("sum"):
            torch_dist.all_reduce(here, group=_control)
        if here is not value:
            value.copy_(here)
    return value


def sum_gradients(parameters: Sequence[torch.nn.Parameter], bucket: int = 1 << 26) -> None:
    """Replace each gradient by its sum over ranks; a missing gradient counts as zero, so that all ranks reduce the same tensors."""
    if world() == 1:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    meet("the sum of gradients")
    waiting: list[torch.Tensor] = []
    size = 0
    for p in parameters:
        assert p.grad is not None
        waiting.append(p.grad)
        size += p.grad.numel()
        if size >= bucket:
            _sum_flat(waiting)
            waiting, size = [], 0
    if waiting:
        _sum_flat(waiting)


def _sum_flat(tensors: list[torch.Tensor]) -> None:
    flat = torch.cat([t.reshape(-1) for t in tensors])
    with collective("sum of gradients"):
        torch_dist.all_reduce(flat)
    place = 0
    for t in tensors:
        t.copy_(flat[place : place + t.numel()].view_as(t))
        place += t.numel()


def stop() -> None:
    """Leave the process group."""
    global _control, _watchdog
    if _watchdog is not None:
        _watchdog.close()
        _watchdog = None
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
    _control = None
