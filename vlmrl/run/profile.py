"""A torch profiler trace of a few steps of each stage, for `vlmrl train --profile N`.

The first step that the process runs in a stage is a warm-up and is left out. What is trained does not change: the profiler watches.
On CUDA the kernels are in the trace too. Other ranks than the first run without it.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vlmrl import fs
from vlmrl.train import dist

ROWS = 30
"""Operations in the table."""


class StageProfiler:
    """Profiles `steps` optimizer steps of one stage. A context manager around the stage; `after_step` ends each step.

    Writes `<folder>/<stage>.json.gz` (Chrome trace, for chrome://tracing or ui.perfetto.dev) and `<folder>/<stage>.txt` (the
    operations that took longest) as soon as the steps are done, or with the steps there were when the stage ends before. A stage that
    fails leaves nothing. `say` gets a line about what came of it.
    """

    def __init__(self, folder: Path, stage: str, *, steps: int, device: torch.device, say: Callable[[str], None]):
        self.trace, self.table = folder / f"{stage}.json.gz", folder / f"{stage}.txt"
        self.recorded = 0
        self._stage, self._say = stage, say
        self._wanted = steps if dist.is_main() else 0
        self._cuda = device.type == "cuda"
        self._profile: Any = None

    def after_step(self) -> None:
        """Called once after every step."""
        if self._profile is not None:
            self.recorded += 1
            if self.recorded == self._wanted:
                self._write()
        elif self.recorded < self._wanted:
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
            self._profile = profile(activities=kinds, acc_events=True)
            self._profile.start()

    def __enter__(self) -> StageProfiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._profile is not None and kind is None and self.recorded:
            self._write()
        elif self._profile is not None:
            self._profile.stop()
            self._profile = None
        if kind is None and self._wanted and not self.recorded:
            self._say(f"stage '{self._stage}': no step was left to profile after the first, which is a warm-up")

    def _write(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
        self._profile.stop()
        order = "self_device_time_total" if self._cuda else "self_cpu_time_total"
        head = f"{self.recorded} steps; the trace is in {self.trace.name}\n"
        fs.mkdir(self.trace.parent)
        with TemporaryDirectory() as scratch:
            plain = Path(scratch) / "trace.json"
            self._profile.export_chrome_trace(str(plain))
            fs.write_bytes(self.trace, gzip.compress(plain.read_bytes()))
        fs.write_text(self.table, head + self._profile.key_averages().table(sort_by=order, row_limit=ROWS) + "\n")
        self._profile = None
        self._say(f"profile of {self.recorded} steps of stage '{self._stage}': {self.trace}")
        self.recorded = self._wanted
