"""One rank of the check `ranks`: `python -m benchmarks.gpu_check.rank (sums | calls | threads | weights | killed) DEVICE WORK`."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.faulty import install
from vlmrl.config.section import OptimSection
from vlmrl.config.train import TrainSection
from vlmrl.policy.load import freeze
from vlmrl.train import dist
from vlmrl.train.replicas import ReplicaUpdates
from vlmrl.train.step import optimizer_step
from vlmrl.train.updates import open_engine

WEIGHT_BUCKETS, WEIGHT_BYTES = 4, 2**26
"""Buckets that are sent, and the bytes of each. The fastest is told: in the first the group is still being set up."""


def main() -> None:
    what, device, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    install()
    dist.start()
    if device == "cuda":
        torch.cuda.set_device(dist.rank())
    try:
        {"sums": sums, "calls": calls, "threads": threads, "weights": weights, "killed": work_until_killed}[what](device, work)
    finally:
        dist.stop()


def sums(device: str, work: Path) -> None:
    """Sums of both kinds of memory, then an update in which the last rank has text alone."""
    mine = float(dist.rank() + 1)
    host = float(dist.sum_(torch.tensor(mine)))
    value = torch.tensor(mine, device=device)
    if dist.world() > 1:
        torch.distributed.all_reduce(value)  # not `dist.sum_`, which may go by way of the CPU
    on_device = float(value)
    opened = toy.open_toy(toy.make(work), device=device)
    rows = toy.rows(opened, answers=2, tokens=10)
    if dist.world() > 1:
        text = [row for row in rows if not row.prompt.media]
        rows = text if dist.rank() == dist.world() - 1 else [row for row in rows if row.prompt.media]
    # plain gradient descent: the change of a weight is its gradient. Advantages change sign from row to row, and each rank has pairs
    learner = toy.learner(opened.policy, opened.vision, budget=4096)
    learner.max_grad_norm = float("inf")
    plain = torch.optim.SGD([p for _, p in learner.named], lr=1.0)
    learner.updates = ReplicaUpdates(learner.named, plain, [name for name, _ in learner.named])
    before = {name: p.detach().cpu().clone() for name, p in learner.named}
    report = optimizer_step(learner, toy.minibatch(rows), toy.Plain())
    change = {name: p.detach().cpu() - before[name] for name, p in learner.named}
    if dist.is_main():
        file = work / f"sums-{dist.world()}.safetensors"
        save_file(change, file)
        found = {"host": host, "device": on_device, "applied": report.applied, "file": str(file), "sockets": sockets()}
        (work / f"sums-{dist.world()}.json").write_text(json.dumps(found))


class Called(TorchDispatchMode):
    """Collectives that are called within, by the name of their group and their own."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            boxed = [one for one in args if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())]
            self.found[ProcessGroup.unbox(boxed[0]).group_name, func.__name__.split(".")[0]] += 1  # pyright: ignore[reportAttributeAccessIssue]
        return func(*args, **(kwargs or {}))


def calls(device: str, work: Path) -> None:
    """What one update of two micro-batches calls where shards lie on pairs of ranks and every pair has a copy of the whole."""
    opened = toy.open_toy(toy.make(work), device=device)
    rows = toy.rows(opened, answers=2, tokens=10)
    engine = open_engine(TrainSection.model_validate({"sharding": "fsdp", "shard_size": 2}), opened.policy.device)
    engine.wrap(opened.policy)
    learner = toy.learner(opened.policy, opened.vision, budget=sum(len(row.prompt.ids) + 2 * 10 for row in rows[::2]) // 2 + 20)
    learner.named = freeze(opened.policy, ())
    learner.updates = engine.updates(opened.policy, learner.named, OptimSection(lr=1e-4))
    learner.updates.start(None)
    batch = toy.minibatch(rows)
    applied = optimizer_step(learner, batch, toy.Plain()).applied
    with Called() as called:
        applied = optimizer_step(learner, batch, toy.Plain()).applied and applied
    control = dist.control()
    assert control is not None
    units = [module for module in opened.policy.model.modules() if type(module).__name__.startswith("FSDP")]
    if dist.is_main():
        found = {
            "applied": applied,
            "parts": len(toy.LAYOUTS[learner.layout].split(rows, learner.max_tokens_per_microbatch)),
            "control": sum(n for (group, _), n in called.found.items() if group == control.group_name),
            "sums": sum(n for (group, name), n in called.found.items() if group != control.group_name and name == "allreduce_"),
            "units": len(units) + 1,  # and what stands around the model
            "sockets": sockets(),
            "allowed": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        (work / "calls.json").write_text(json.dumps(found))


def threads(device: str, work: Path) -> None:
    """What an update has of the cores where weights and moments lie in the machine's memory, and what there is before and behind it."""
    opened = toy.open_toy(toy.make(work), device=device)
    rows = [row for row in toy.rows(opened, answers=2, tokens=10) if not row.prompt.media]
    engine = open_engine(TrainSection.model_validate({"sharding": "fsdp", "offload": "all"}), opened.policy.device)
    engine.wrap(opened.policy)
    learner = toy.learner(opened.policy, opened.vision, budget=4096)
    learner.named = freeze(opened.policy, ())
    learner.updates = engine.updates(opened.policy, learner.named, OptimSection(lr=1e-4))
    learner.updates.start(None)
    within: list[int] = []
    learner.updates.optimizer.register_step_pre_hook(lambda *_: within.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    applied = optimizer_step(learner, toy.minibatch(rows), toy.Plain()).applied
    if dist.is_main():
        cores = len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])
        found = {"applied": applied, "before": before, "within": within, "behind": torch.get_num_threads(), "cores": max(1, cores)}
        (work / "threads.json").write_text(json.dumps(found))


def weights(device: str, work: Path) -> None:
    """Buckets of weights on their way to a rollout server, of which rank 1 is the worker."""
    from vlmrl.extras.vllm import carrier
    from vlmrl.extras.vllm.worker import checksum

    place = torch.device(device, dist.rank()) if device == "cuda" else torch.device(device)
    meets = carrier.meeting("127.0.0.1", 1) if dist.is_main() else None
    port: Any = dist.gather(None if meets is None else meets.getsockname()[1])[0]
    line = carrier.Line(host="127.0.0.1", port=port, world=2, kind="nccl" if device == "cuda" else "gloo", name="check")
    group = carrier.Carrier(line, dist.rank(), device=place, meets=meets)
    sums: list[int] = []
    seconds: list[float] = []
    for turn in range(WEIGHT_BUCKETS):
        given = torch.randn(WEIGHT_BYTES // 4, generator=torch.Generator().manual_seed(turn)).to(place)
        row, told = carrier.packed([("w", given)])
        began = time.perf_counter()
        if dist.is_main():
            group.cast(row)
            sums.append(checksum(given))
        else:

            def taken(size: int) -> torch.Tensor:
                room = torch.empty(size, dtype=torch.uint8, device=place)
                group.cast(room)
                return room

            ((_, got),) = carrier.cut(told["names"], told["dtypes"], told["shapes"], taken)
            sums.append(checksum(got))
        seconds.append(time.perf_counter() - began)
    found = dist.gather(sums)
    group.leave()
    if dist.is_main():
        told_of = {"sent": found[0], "came": found[1], "rate": WEIGHT_BYTES / 2**30 / min(seconds)}
        (work / "weights.json").write_text(json.dumps(told_of))


def sockets() -> int:
    """Of this process."""
    return sum(os.readlink(f"/proc/self/fd/{name}").startswith("socket:") for name in os.listdir("/proc/self/fd") if _is_open(name))


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")  # the folder's own is closed again


def work_until_killed(device: str, work: Path) -> None:
    """What ranks do in a step, for ever: agree on a count, sum gradients. The check kills one of them."""
    weight = torch.nn.Parameter(torch.ones(1024, device=device))
    for step in range(1_000_000):
        dist.sum_(torch.ones(()))
        weight.grad = torch.ones_like(weight)
        dist.sum_gradients([weight])
        if step == 20 and dist.is_main():
            (work / "working").write_text("")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
