"""Memory and time inside a measuring process."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
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
