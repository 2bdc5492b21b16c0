"""Where the time of a step goes: named phases, and what they leave unexplained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import record_function


class Clock:
    """Adds up seconds by phase since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; phases must not nest. A profiler that runs shows the block under this name."""
        began = time.perf_counter()
        try:
            with record_function(f"phase: {name}"):
                yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """`time/<phase>` and `time/step_total`."""
        return {f"time/{name}": value for name, value in self.seconds.items()} | {"time/step_total": time.perf_counter() - self._began}
