"""Memory and time inside a measuring process."""

from __future__ import annotations

import itertools
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Meter:
    """Peak memory from now on. CPU: the process's high-water mark (`getrusage`), set back to the present where the kernel lets us
    (`/proc/self/clear_refs`). CUDA: what torch's allocator held at most."""

    def __init__(self, device: str):
        self.cuda = device.startswith("cuda")
        self.reset = False
        if self.cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.loaded = torch.cuda.memory_allocated()
            return
        marker = Path("/proc/self/clear_refs")
        if marker.exists() and os.access(marker, os.W_OK):
            marker.write_text("5")
            self.reset = True
        self.loaded = resident()

    def read(self) -> dict[str, Any]:
        """Bytes: `loaded` at the start, `peak` since then. `exact` is false where loading may have been the peak."""
        if self.cuda:
            import torch

            return {"loaded": self.loaded, "peak": torch.cuda.max_memory_allocated(), "exact": True}
        scale = 1 if sys.platform == "darwin" else 1024
        return {"loaded": self.loaded, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale, "exact": self.reset}


def resident(pid: int | None = None) -> int:
    """Bytes of a process in memory now: of this one, or where there is `/proc` of another."""
    status = Path(f"/proc/{'self' if pid is None else pid}/status")
    if pid is not None or status.exists():
        return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status.read_text())[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def now(device: str) -> float:
    """Seconds, after the device has finished what it was given."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def timed_steps(
    trainer: Any, settings: dict[str, Any], rollout: str, keep: Callable[[Any], Any], train: Callable[[], Any]
) -> dict[str, Any]:
    """Train with a GRPO trainer that is built on TRL's and time its steps, each from one `on_step_end` to the next.

    The update is what remains of a step without `_generate_and_score_completions` and without the loader's `get_batch_samples`.

    Args:
        rollout: the trainer's method that makes the answers.
        keep: what of its result comes back as `kept`, that of the last step.
        train: what trains.
    """
    from transformers import TrainerCallback

    device, skip = settings["device"], settings["warmup"]
    marks: list[tuple[float, float]] = []
    kept: list[Any] = []
    parts: dict[str, list[float]] = {rollout: [], "_generate_and_score_completions": [], "get_batch_samples": []}

    class Ends(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            marks.append((now(device), time.process_time()))

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append((now(device), time.process_time()))

    trainer.add_callback(Ends())
    for name in parts:
        timed_method(trainer, name, parts[name], device, kept if name == rollout else None, keep)
    meter = Meter(device)
    train()
    memory = meter.read()
    seconds, cpu = ([b - a for a, b in itertools.pairwise(column)] for column in zip(*marks, strict=True))
    together = zip(seconds, parts["_generate_and_score_completions"], parts["get_batch_samples"], strict=True)
    return {
        "seconds": seconds[skip:],
        "cpu": cpu[skip:],
        "rollout": parts[rollout][skip:],
        "update": [whole - scored - loaded for whole, scored, loaded in together][skip:],
        "memory": memory,
        "kept": kept[-1],
    }


def timed_method(
    trainer: Any, name: str, into: list[float], device: str, kept: list[Any] | None, keep: Callable[[Any], Any] = lambda result: result
) -> None:
    """Record the seconds of every call of a method, and what `keep` takes of what it returned the last time."""
    method = getattr(trainer, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = now(device)
        result = method(*args, **kwargs)
        into.append(now(device) - began)
        if kept is not None:
            kept[:] = [keep(result)]
        return result

    setattr(trainer, name, timed)
