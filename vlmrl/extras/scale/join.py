"""How the processes that a launcher has started become the ranks of one run: their groups, and who watches over them."""

from __future__ import annotations

import atexit
import json
import os
import resource
import secrets
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from vlmrl.extras.scale import watchdog
from vlmrl.extras.scale.watchdog import Waits, Watchdog
from vlmrl.train import dist

_KEY = "vlmrl/store"
LIMIT = timedelta(hours=24)
"""Of a collective of the control group. Whoever is lost is given up within seconds (`scale.watchdog`); who lives is waited for."""


def join(patience: float | None, *, offloads: bool) -> tuple[torch_dist.ProcessGroup, Watchdog]:
    """Join the process group of the launcher. The group of the control traffic, and who watches over the ranks; `dist.start` says what the
    arguments are."""
    from accelerate import PartialState

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
    atexit.register(dist.stop)
    return _start_control(waits)


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


def _start_control(waits: Waits) -> tuple[Any, Watchdog]:
    """The group of the control traffic, and who watches over the ranks."""
    control: Any = torch_dist.new_group(backend="gloo", timeout=LIMIT, group_desc="control")
    listener = watchdog.listen() if dist.is_main() else None
    told: list[Any] = [None]
    if listener is not None:
        own = watchdog.address(os.environ.get("MASTER_ADDR", "localhost"))
        told = [(own, listener.getsockname()[1], secrets.token_hex(16))]
    torch_dist.broadcast_object_list(told, src=0, group=control)
    host, port, token = told[0]
    watch = watchdog.Watchdog(rank=dist.rank(), world=dist.world(), address=(host, port), token=token, listener=listener, waits=waits)
    return control, watch
