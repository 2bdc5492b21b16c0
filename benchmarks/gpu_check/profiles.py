"""What one decoding step and one update launch: kernels, waits of the host, copies. On a CPU: operations of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check import counted, toy
from benchmarks.gpu_check.base import Report, Settings, at_most, told
from vlmrl.train.step import optimizer_step

WAITS_CUDA = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
WAITS_CPU = ("aten::_local_scalar_dense", "aten::nonzero")
"""What waits for the device, were there one."""
PER_TOKEN = {"kernels": 500, "operations": 2200, "waits": 6, "copies": 8}
"""Most per decoded token of the toy model (4 layers). Operations and waits: half more than a CPU counts; the others are reckoned."""
PER_UPDATE = {"kernels": 8000, "operations": 36000, "waits": 190, "copies": 400}
"""Most per update of two micro-batches, likewise."""
SHORT, LONG = 8, 24


@dataclass(frozen=True)
class Counted:
    """Of one profile."""

    launched: int
    waits: int
    copies: int
    busy: float
    """Seconds of the device."""


def count(act: Callable[[], Any], *, cuda: bool) -> Counted:
    """Profile one call. It should have run before, so that nothing is set up in it."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=kinds, acc_events=True) as found:
        act()
        if cuda:
            torch.cuda.synchronize()
    events: Any = found.events()
    if not cuda:
        names = [event.name for event in events]
        operations = sum(name.startswith("aten::") for name in names)
        return Counted(operations, sum(name in WAITS_CPU for name in names), 0, 0.0)
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]  # pyright: ignore[reportPrivateImportUsage]
    copies = [event for event in on_device if event.name.startswith("Memcpy")]
    kernels = [event for event in on_device if not event.name.startswith(("Memcpy", "Memset"))]
    waits = sum(event.name in WAITS_CUDA for event in events) - 1  # our own at the end
    return Counted(len(kernels), waits, len(copies), sum(event.device_time_total for event in on_device) / 1e6)


def check_profile(settings: Settings, report: Report) -> None:
    """One decoded token and one update of the toy model under the profiler: kernels (CPU: operations), waits of the host, copies; and what
    no profile shows, counted call by call (`counted`)."""
    files = toy.make(settings.work)
    dtype = "bfloat16" if settings.cuda else "float32"
    opened = toy.endless(toy.open_toy(files, device=settings.device, dtype=dtype))
    report.attempt("token", lambda: _token(settings, opened, report))
    report.attempt("update", lambda: _update(settings, opened, report))
    report.attempt("waits", lambda: counted.waits(settings, files, report, count))
    for part, measure in (("writes", counted.writes), ("casts", counted.casts), ("patches", counted.patches)):
        report.attempt(part, lambda m=measure: m(settings, files, report))


def _judge(settings: Settings, part: str, per: Counted, limits: dict[str, int], report: Report, note: str = "") -> None:
    unit = "kernels" if settings.cuda else "operations"
    numbers = [at_most(unit, per.launched, limits[unit]), at_most("waits", per.waits, limits["waits"])]
    if settings.cuda:
        numbers += [at_most("copies", per.copies, limits["copies"]), told("device busy", per.busy, "s")]
    report.line(part, *numbers, note=note)


def _token(settings: Settings, opened: toy.Toy, report: Report) -> None:
    """The difference between long and short answers, divided by the tokens between: prefill and start drop out."""
    prompts = [prompts[0] for prompts in opened.prompts.values()]

    def act(tokens: int) -> Callable[[], Any]:
        return lambda: toy.generate(opened, prompts, answers=4, tokens=tokens)

    act(SHORT)()
    short, long = (count(act(tokens), cuda=settings.cuda) for tokens in (SHORT, LONG))
    between = LONG - SHORT
    per = Counted(
        round((long.launched - short.launched) / between),
        round((long.waits - short.waits) / between),
        round((long.copies - short.copies) / between),
        (long.busy - short.busy) / between,
    )
    _judge(settings, "token", per, PER_TOKEN, report, note="per decoded token, 4 layers, 16 answers")


def _update(settings: Settings, opened: toy.Toy, report: Report) -> None:
    rows = toy.rows(opened, answers=3, tokens=12)
    sizes = [len(row.prompt.ids) + 3 * 12 for row in rows[::3]]
    learner = toy.learner(opened.policy, opened.vision, budget=max(max(sizes), (sum(sizes) + 1) // 2))
    batch = toy.minibatch(rows)
    optimizer_step(learner, batch, toy.Plain())
    per = count(lambda: optimizer_step(learner, batch, toy.Plain()), cuda=settings.cuda)
    _judge(settings, "update", per, PER_UPDATE, report, note="per update, two micro-batches, 4 layers and the tower")
