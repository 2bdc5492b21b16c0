"""Keeps account of the device's memory by phase of a step (rollout, reward, forward and backward, update, sync): what was allocated, what
was reserved, how often an allocation had to be tried again, and what was planned for it.

Peaks are those of the process. So phases that run at the same time, as rewards beside a rollout, all have the peak of that time.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from vlmrl.errors import StorageError

MIB = 2**20
TURNS = ("rollout", "forward_backward")
"""Phases that want memory in pieces of their own: where one follows the other, what the first one left is given back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """Bytes, and a running count."""

    allocated: int | None
    """Most that tensors took since the last reset; None where nobody counts them."""
    reserved: int
    """Most that the process held of the device for them."""
    retries: int = 0
    """How often memory had to be given back and asked for again, since the process began."""


class Gauge(Protocol):
    """Reads the memory of a device."""

    @property
    def name(self) -> str | None:
        """What the device is called; None where tensors are not counted, so that no plan can be held against them."""
        ...

    def read(self) -> MemoryReading:
        """Peaks since the last reset."""
        ...

    def reset(self) -> None: ...

    def empty(self) -> None:
        """Give back what is reserved and not used."""
        ...

    def outside(self) -> int:
        """Bytes of the device that are in use beside what is reserved: the driver's context, libraries, other processes."""
        ...


@dataclass(frozen=True)
class CudaGauge:
    """Reads what torch's allocator counts."""

    device: torch.device

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def read(self) -> MemoryReading:
        stats = torch.cuda.memory_stats(self.device)
        peaks = (int(stats.get(f"{kind}_bytes.all.peak", 0)) for kind in ("allocated", "reserved"))
        return MemoryReading(allocated=next(peaks), reserved=next(peaks), retries=int(stats.get("num_alloc_retries", 0)))

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def outside(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device)


@dataclass(frozen=True)
class HostGauge:
    """On the CPU: resident memory as it is when a phase ends. Nobody counts tensors there, and the kernel takes memory back by itself."""

    name: None = None

    def read(self) -> MemoryReading:
        return MemoryReading(allocated=None, reserved=resident())

    def reset(self) -> None:
        """Nothing: there is no peak."""

    def empty(self) -> None:
        """Nothing is kept."""

    def outside(self) -> int:
        return 0


def gauge_of(device: torch.device) -> Gauge:
    """Make what reads the memory of a device."""
    return CudaGauge(device) if device.type == "cuda" else HostGauge()


def peak_resident() -> int:
    """Measure the most resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident() -> int:
    """Measure the resident memory of this process in bytes; where the kernel does not tell, the most so far."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * resource.getpagesize() if pages.exists() else peak_resident()


@dataclass(frozen=True, kw_only=True)
class DevicePeaks:
    """Peak use of a device by a run, in bytes."""

    slack: int
    """Beyond tensors."""
    allocated: int
    reserved: int
    run: str
    """Whose numbers these are."""


@dataclass
class _Phase:
    """Of one phase since the last line of the log."""

    allocated: int | None = None
    reserved: int = 0
    retries: int = 0

    def add(self, now: MemoryReading, retries: int) -> None:
        if now.allocated is not None:
            self.allocated = max(self.allocated or 0, now.allocated)
        self.reserved = max(self.reserved, now.reserved)
        self.retries += retries


@dataclass(kw_only=True)
class MemoryLedger:
    """See the module docstring. Threads may be in phases of their own."""

    gauge: Gauge = field(default_factory=HostGauge)
    planned: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes of tensors that the plan says of a phase."""
    keep: Callable[[str, DevicePeaks], None] | None = None
    """Keeps what a device's use took beyond tensors, for the next plan."""
    _running: Counter[str] = field(default_factory=Counter[str])
    _phases: dict[str, _Phase] = field(default_factory=dict[str, _Phase])
    _step: _Phase = field(default_factory=_Phase)
    _run: _Phase = field(default_factory=_Phase)
    _outside: int = 0
    _retries: int | None = None
    _turn: str | None = None
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Account for a block. A turn from rollout to training or back first empties the allocator's cache."""
        with self._lock:
            self._settle()
            if name in TURNS and name != self._turn:
                if self._turn is not None:
                    # generation and training want blocks of other sizes: what one has reserved is of little use to the other
                    self.gauge.empty()
                    self.gauge.reset()
                self._turn = name
            self._running[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._settle()
                if name in TURNS:
                    self._outside = max(self._outside, self.gauge.outside())
                self._running[name] -= 1

    def _settle(self) -> None:
        """Book what was seen since the last call on the phases that run now."""
        now = self.gauge.read()  # a peak of the process: of phases that run together, each is given all of it
        retries = 0 if self._retries is None else now.retries - self._retries
        self._retries = now.retries
        for phase in (self._step, self._run, *(self._phases.setdefault(name, _Phase()) for name, n in self._running.items() if n)):
            phase.add(now, retries)
        self.gauge.reset()

    def metrics(self) -> dict[str, float]:
        """Report the most of each phase since the last call, in MiB: `memory/<phase>/reserved` and `/retries`; where tensors are counted
        `/allocated`, and `/plan_ratio`, what the plan says over what was allocated. `memory/peak_rss`: most resident memory of this process
        so far. On CUDA also `memory/cuda_allocated` and `memory/cuda_reserved`, the most of all phases and of what is between them."""
        with self._lock:
            self._settle()
            phases, step = self._phases, self._step
            self._phases, self._step = {}, _Phase()
        out = {"memory/peak_rss": peak_resident() / MIB}
        if step.allocated is not None:
            out |= {"memory/cuda_allocated": step.allocated / MIB, "memory/cuda_reserved": step.reserved / MIB}
        for name, seen in sorted(phases.items()):
            out |= {f"memory/{name}/reserved": seen.reserved / MIB, f"memory/{name}/retries": float(seen.retries)}
            if seen.allocated is not None:
                out[f"memory/{name}/allocated"] = seen.allocated / MIB
                if seen.allocated and name in self.planned:
                    out[f"memory/{name}/plan_ratio"] = self.planned[name] / seen.allocated
        return out

    def remember(self, run: str, say: Callable[[str], None]) -> None:
        """Keep what the device's use took beyond tensors at the peaks so far, for the next plan: holes of the allocator, the driver's
        context, libraries. Nothing where tensors are not counted or nobody keeps it. `run`: whose numbers these are."""
        device, seen = self.gauge.name, self._run
        if self.keep is None or device is None or seen.allocated is None:
            return
        slack = seen.reserved - seen.allocated + self._outside
        try:
            self.keep(device, DevicePeaks(slack=slack, allocated=seen.allocated, reserved=seen.reserved, run=run))
        except StorageError as error:  # nothing of the run depends on it
            say(f"what memory is taken beyond tensors is not kept for the next plan: {error}")
