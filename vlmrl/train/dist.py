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

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as torch_dist

from vlmrl.errors import VlmrlError
from vlmrl.registry import Catalogue

T = TypeVar("T")

_ROOM = 2048
"""Bytes of an object that go in one call."""
SEVERAL: Catalogue[Callable[..., Any]] = Catalogue("function of several ranks")
"""What a run of one process does without, and nobody else may."""


class Watch(Protocol):
    """Watches over the ranks of a run: whom the others wait for, and who is lost."""

    doing: str
    """What this rank is at."""

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Mark a block in which this rank waits for the others."""
        ...

    def close(self) -> None:
        """Say goodbye."""
        ...


_control: torch_dist.ProcessGroup | None = None
_watchdog: Watch | None = None
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
    global _control, _watchdog
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch_dist.is_initialized():
        _control, _watchdog = SEVERAL["join"](patience, offloads=offloads)


def control() -> torch_dist.ProcessGroup | None:
    """Return the group of the control traffic: gloo, on the CPU, whatever the device is. None in a run of one process."""
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
    """Mark a block in which this rank waits for the others, for the watch over lost ranks. In the same order on all ranks."""
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
    """Collect `value` of every rank, in rank order, on every rank."""
    if world() == 1:
        return [value]
    with collective("gather"):
        return gathered(value, _control)


def gathered(value: T, group: Any) -> list[T]:
    """`gather` within a group: one call where the value is small on every rank, else two. A call is a round over all ranks, whatever its
    bytes are."""
    objects: Any = torch_dist.distributed_c10d  # the pickling of torch's own `all_gather_object`
    own, size = objects._object_to_tensor(value, torch.device("cpu"), group)
    # [8 bytes: size | first bytes of the pickle]: who is small is done with one call, and all know whether a second follows
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
    """Collect a tensor of every rank, all of one size."""
    everyone = list(own.new_empty(torch_dist.get_world_size(group), len(own)))
    torch_dist.all_gather(everyone, own, group=group)
    return everyone


def run_synchronized(fn: Callable[[], T]) -> T:
    """Run local work that may fail, then agree: every rank goes on, or every rank raises.

    `fn` must not contain collectives. Raises the local error where there is one, else `RankFailed` with the origin's trace.
    """
    return agreed(fn, gather)


def agreed(fn: Callable[[], T], gather: Callable[[Any], list[Any]]) -> T:
    """`run_synchronized` with another `gather`: that of a thread beside the main one, with a group of its own."""
    error: BaseException | None = None
    result: Any = None
    try:
        result = fn()
    except Exception as caught:  # noqa: BLE001 (re-raised below, after the other ranks know)
        error = caught
    own = None if error is None else ("".join(traceback.format_exception(error)), int(getattr(error, "exit_code", 70)))
    failures = gather(own)  # also by the rank that failed, or the others would wait for it here
    if error is not None:
        raise error
    for origin, failure in enumerate(failures):
        if failure is not None:
            raise RankFailed(f"rank {origin} failed:\n{failure[0]}", failure[1])
    return result


def on_main(fn: Callable[[], T]) -> T | None:
    """Run `fn` on rank 0 only; its failure is every rank's failure."""
    return run_synchronized(fn if is_main() else lambda: None)


def sum_(value: torch.Tensor) -> torch.Tensor:
    """Sum a small tensor over ranks, in place; on the CPU, wherever the tensor is.

    Returns:
        The same tensor.
    """
    if world() > 1:
        here = value.cpu()  # in the control group, where a rank may come late
        with collective("sum"):
            torch_dist.all_reduce(here, group=_control)
        if here is not value:
            value.copy_(here)
    return value


def sum_gradients(parameters: Sequence[torch.nn.Parameter], bucket: int = 1 << 26) -> None:
    """Replace each gradient by its sum over ranks; a missing gradient counts as zero, so that all ranks reduce the same tensors.

    Args:
        bucket: numbers that go in one call, and are held once more meanwhile.
    """
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
