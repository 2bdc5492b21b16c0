"""What a step cost besides time: tokens, memory, and work that caches did or saved.

`tokens/*` depend on the rows alone and are equal in a resumed run; `memory/*`, `work/*` and `cache/*` depend on the process.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping, Sequence

import torch

from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import Row
from vlmrl.train import dist

MIB = 2**20


class Tokens:
    """Tokens of the rows that a step trains on, over all ranks."""

    def __init__(self) -> None:
        self._here: dict[str, int] = {}

    def add(self, rows: Sequence[Row], max_tokens: int) -> None:
        """Count one minibatch of this rank. `max_tokens` is the budget of a micro-batch, which decides what is padded."""
        prompts = {(row.group, id(row.prompt)): len(row.prompt.ids) for row in rows}
        counts = {
            "tokens/prompt": sum(prompts.values()),
            "tokens/response": sum(len(row.response) for row in rows),
            "repeat": repeated(rows, max_tokens),
        }
        self._here = {name: self._here.get(name, 0) + n for name, n in counts.items()}

    def read(self, forward: int) -> dict[str, float]:
        """Counts since the last call, summed over all ranks, which must all call this.

        `tokens/prompt` (each prompt once per minibatch), `tokens/response`, `tokens/forward` (what went through the model in the
        update, given for this rank) and `tokens/saved`, what the layout `repeat` would have run more.
        """
        here, self._here = self._here | {"tokens/forward": forward}, {}
        total: dict[str, int] = {}
        for of_rank in dist.gather(here):
            for name, n in of_rank.items():
                total[name] = total.get(name, 0) + n
        saved = total.pop("repeat", 0) - total["tokens/forward"]
        names = ("tokens/prompt", "tokens/response", "tokens/forward")
        return {name: float(total.get(name, 0)) for name in names} | {"tokens/saved": float(saved)}


def repeated(rows: Sequence[Row], max_tokens: int) -> int:
    """Tokens, padding included, that the layout `repeat` runs for these rows."""
    lengths = [len(row.prompt.ids) + len(row.response) for row in rows]
    return sum(max(lengths[place] for place in part) * len(part) for part in LAYOUTS["repeat"].split(rows, max_tokens))


class Counters:
    """Running counts of the process, read as what was added since the last reading."""

    def __init__(self, sources: Mapping[str, Callable[[], float]]):
        self._sources = dict(sources)
        self._last = {name: count() for name, count in self._sources.items()}

    def add(self, name: str, count: Callable[[], float]) -> None:
        """Also read this one, from its value now."""
        self._sources[name] = count
        self._last[name] = count()

    def read(self) -> dict[str, float]:
        """What each source counted since the last call."""
        now = {name: count() for name, count in self._sources.items()}
        out = {name: float(value - self._last[name]) for name, value in now.items()}
        self._last = now
        return out


def memory(device: torch.device) -> dict[str, float]:
    """MiB. `memory/peak_rss`: most resident memory of this process so far. On CUDA also the most that torch allocated and reserved
    since the last call."""
    out = {"memory/peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / MIB}
    if device.type == "cuda":
        out["memory/cuda_allocated"] = torch.cuda.max_memory_allocated(device) / MIB
        out["memory/cuda_reserved"] = torch.cuda.max_memory_reserved(device) / MIB
        torch.cuda.reset_peak_memory_stats(device)
    return out
