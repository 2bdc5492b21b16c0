"""The number of torch's threads on a CPU, chosen by a short measurement where nobody says it.

torch takes all cores. Threads that wait for one another spin, so on a machine with something else to do, or with a model whose operations
are small, all cores can be ten times slower than one. What is best depends on machine and moment, so it is measured when a run begins.
Bits depend on the number: it is kept in `environment.json`, and the run goes on with it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vlmrl.config.schema import Config
from vlmrl.policy.load import files_of, pick_device

SAID_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "WORLD_SIZE")
"""Variables that say the number, or that a launcher does."""
SECONDS = 0.6
"""No further round is begun after this time."""
GAIN = 0.9
"""More threads are taken where they need at most this share of the time of fewer."""
OPERATIONS = 1e9
WIDEST = 1024


def settle(cfg: Config, run: Path, model: str) -> str | None:
    """Set the number of threads and give the line that says so; None where recipe, environment or launcher say it, or nothing is to choose.

    Args:
        run: the run's folder. One that is there goes on with the number that it was begun with.
        model: where the base model is.
    """
    if cfg.run.threads or any(name in os.environ for name in SAID_BY) or pick_device(cfg.model.device).type != "cpu":
        return None
    if (run / "run.json").exists():
        kept = _json(run / "environment.json").get("threads")
        if not isinstance(kept, int):
            return None  # begun by an earlier version, with torch's own number
        torch.set_num_threads(kept)
        return f"threads: {kept}, as the run was begun"
    cores = len(os.sched_getaffinity(0))
    counts = sorted({1, max(1, cores // 2), cores})
    if len(counts) == 1:
        return None
    seconds = measure(counts, width_of(model, cfg.model.revision))
    count = best(seconds)
    torch.set_num_threads(count)
    times = ", ".join(f"{1000 * seconds[n]:.0f} ms with {n}" for n in counts)
    return f"threads: {count} of {cores} cores (measured: {times}; run.threads or OMP_NUM_THREADS say another number)"


def best(seconds: Mapping[int, float]) -> int:
    """The number to take: more threads only where they are clearly faster."""
    taken = min(seconds)
    for count in sorted(seconds):
        if seconds[count] <= GAIN * seconds[taken]:
            taken = count
    return taken


def measure(counts: list[int], width: int) -> dict[int, float]:
    """Mean seconds of a chain of operations for each number of threads, in turns, so that all of them meet the same load."""
    chain = _Chain(width)
    spent = dict.fromkeys(counts, 0.0)
    began, rounds = time.perf_counter(), 0
    for count in counts:
        torch.set_num_threads(count)
        chain.run()  # the first makes the threads
    while not rounds or time.perf_counter() - began < SECONDS:
        rounds += 1
        for count in counts:
            torch.set_num_threads(count)
            start = time.perf_counter()
            chain.run()
            spent[count] += time.perf_counter() - start
    return {count: seconds / rounds for count, seconds in spent.items()}


class _Chain:
    """What a layer does in training (many rows, with gradients) and in decoding (few rows, many small operations)."""

    def __init__(self, width: int):
        generator = torch.Generator().manual_seed(0)
        rows = int(min(512, max(32, OPERATIONS / (48 * width**2))))
        self.many = torch.randn(rows, width, generator=generator)
        self.few = self.many[:8].clone()
        self.up = (torch.randn(width, 4 * width, generator=generator) / width**0.5).requires_grad_()
        self.down = (torch.randn(4 * width, width, generator=generator) / (4 * width) ** 0.5).requires_grad_()

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.softmax(x @ x.T / x.shape[1] ** 0.5, dim=-1) @ x
        return torch.nn.functional.layer_norm(x + torch.nn.functional.silu(x @ self.up) @ self.down, x.shape[1:])

    def run(self) -> None:
        """Once, forth and back."""
        torch.autograd.grad(self._layer(self.many).square().mean(), (self.up, self.down))
        with torch.no_grad():
            x = self.few
            for _ in range(8):
                x = self._layer(x)


def width_of(model: str, revision: str | None) -> int:
    """Size of the hidden states of a model, at most `WIDEST`."""
    folder = files_of(model, revision)
    config = {} if folder is None else _json(folder / "config.json")
    widths = [part.get("hidden_size") for part in (config.get("text_config"), config) if isinstance(part, dict)]
    return min([WIDEST, *(width for width in widths if isinstance(width, int) and width > 0)])


def _json(path: Path) -> dict[str, Any]:
    """A file's mapping; nothing where it cannot be read: whoever needs it says so."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
