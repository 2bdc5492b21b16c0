"""One rank of the check `ranks`: `python -m benchmarks.gpu_check.rank (sums | killed) DEVICE WORK`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.faulty import install
from vlmrl.train import dist
from vlmrl.train.shard.ddp import ReplicaUpdates
from vlmrl.train.step import optimizer_step


def main() -> None:
    what, device, work = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    install()
    dist.start()
    if device == "cuda":
        torch.cuda.set_device(dist.rank())
    try:
        (sums if what == "sums" else work_until_killed)(device, work)
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
        found = {"host": host, "device": on_device, "applied": report.applied, "file": str(file)}
        (work / f"sums-{dist.world()}.json").write_text(json.dumps(found))


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
