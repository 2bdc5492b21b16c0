"""Data parallelism: who am I, gradient sums, and a barrier that carries errors.

accelerate launches the processes and names the device; every rank holds the whole model. Gradients are summed by hand after the
last micro-batch, since the loss is already divided by denominators counted over all ranks. So no rank waits inside a forward,
and ranks may have different numbers of micro-batches.
"""

from __future__ import annotations

import atexit
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as torch_dist

from vlmrl.errors import VlmrlError

if TYPE_CHECKING:
    from vlmrl.train.watchdog import Watchdog

T = TypeVar("T")

PATIENCE = timedelta(hours=24)
"""How long a rank waits for the others in a collective. It says so after a minute, and a rank without any sign of life is given up after
half an hour: see `train.watchdog`, which also says how to change both."""
_watchdog: Watchdog | None = None
"""Of this process; None where it is the only one."""


class RankFailed(VlmrlError):
    """Another rank failed; its message and trace are inside, and its exit code is this one's."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def start() -> None:
    """Join the process group when a launcher made one (`accelerate launch`, `torchrun`); else do nothing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch_dist.is_initialized():
        from accelerate import PartialState

        # a rank may wait for a judge for as long as its recipe allows, and the others for it
        PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
        # a process that ends with the group's threads running aborts now and then, and its exit code with it
        atexit.register(stop)
        _watch()


def _watch() -> None:
    global _watchdog
    from vlmrl.train import watchdog  # only here: a run of one process does without

    patience = PATIENCE.total_seconds()
    warn = watchdog.seconds(watchdog.WARN_VARIABLE, watchdog.WARN_SECONDS)
    lost = watchdog.seconds(watchdog.LOST_VARIABLE, watchdog.LOST_SECONDS)
    store: Any = torch_dist.distributed_c10d._get_default_store()

    _watchdog = watchdog.Watchdog(store.clone(), rank=rank(), world=world(), warn=warn, lost=lost, patience=patience)


def doing(what: str) -> None:
    """Say what the run is at (`stage 'rl', step 3`), for the messages of the other ranks should this one hang."""
    if _watchdog is not None:
        _watchdog.doing = what


def collective(name: str) -> AbstractContextManager[None]:
    """Context of a collective that other code makes, so that the watchdog knows of it."""
    return nullcontext() if _watchdog is None else _watchdog.collective(name)


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
    out: list[Any] = [None] * world()
    with collective("gather"):
        torch_dist.all_gather_object(out, value)
    return out


def run_synchronized(fn: Callable[[], T]) -> T:
    """Run local work that may fail, then agree: every rank goes on, or every rank raises.

    `fn` must not contain collectives. Raises the local error where there is one, else `RankFailed` with the origin's trace.
    """
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


def sum_(value: torch.Tensor) -> torch.Tensor:
    """Sum of a small tensor over ranks."""
    if world() > 1:
        with collective("sum"):
            torch_dist.all_reduce(value)
    return value


def sum_gradients(parameters: Sequence[torch.nn.Parameter], bucket: int = 1 << 26) -> None:
    """Replace each gradient by its sum over ranks; a missing gradient counts as zero, so that all ranks reduce the same tensors."""
    if world() == 1:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
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
    global _watchdog
    if _watchdog is not None:
        _watchdog.close()
        _watchdog = None
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()
