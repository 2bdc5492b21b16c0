"""Out of memory: the token budget of a micro-batch far too large must be halved, give the same update, and give the memory back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check import toy, turns
from benchmarks.gpu_check.alive import held
from benchmarks.gpu_check.base import Report, Settings, at_most, equals, told
from vlmrl.policy.pack import Row
from vlmrl.train.step import Minibatch, optimizer_step

HUGE = 1 << 20
SIZES = {False: (6, 12), True: (32, 128)}
"""Answers of a prompt and their tokens, with CUDA and without: there, activations must be more than what libraries keep for themselves."""
CLOSE = 1e-3
"""Most difference of a weight to the update with small micro-batches, as a share of the largest change. AdamW's first step has the size
of the learning rate wherever a gradient is not zero, so rounding shows in weights whose gradient is nearly zero."""
LEFT = 1.05
"""Most memory afterwards, as a share of that after an update that had enough."""


class Refusing(toy.Plain):
    """Says that memory is out, as a device would: at once in the first try, and in the second try behind a backward."""

    def __init__(self) -> None:
        self.tries = 0
        self.calls = 0

    def total(self, mask_NT: Tensor) -> float:
        """Called at the start of every try."""
        self.tries, self.calls = self.tries + 1, 0
        return super().total(mask_NT)

    def __call__(self, x: Any, slices: Any, total: float) -> Any:
        self.calls += 1
        if self.calls == self.tries < 3:
            raise torch.OutOfMemoryError("as if the device were full")
        return super().__call__(x, slices, total)


def check_memory(settings: Settings, report: Report) -> None:
    """A token budget far too large: it is halved until it fits, the update is the same, and the memory comes back. What a rollout leaves to
    the update behind it, and what activations take of the machine's memory (`turns`)."""
    files = toy.make(settings.work)
    report.attempt("halving", lambda: _halving(settings, files, report))
    report.attempt("turns", lambda: turns.turns(settings, files, report))
    report.attempt("pinned", lambda: turns.pinned(settings, files, report))


def _update(settings: Settings, files: toy.Files, budget: int, objective: Any, most: int | None) -> dict[str, Any]:
    """One update from the same weights. `most`: bytes that the device may hold, for a GPU."""
    without = held(settings.device)
    opened = toy.open_toy(files, device=settings.device)
    answers, length = SIZES[settings.cuda]
    rows = _rows(opened, answers, length)
    learner = toy.learner(opened.policy, opened.vision, budget=budget)
    before = {name: p.detach().cpu().clone() for name, p in learner.named}
    batch: Minibatch = toy.minibatch(rows)
    if settings.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if most is not None:
            torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        done = optimizer_step(learner, batch, objective)
    finally:
        if settings.cuda:
            torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "applied": done.applied,
        "budget": learner.max_tokens_per_microbatch,
        "change": {name: p.detach().cpu() - before[name] for name, p in learner.named},
        "peak": torch.cuda.max_memory_reserved() if settings.cuda else 0,
        "held": held(settings.device) - without,
        "tokens": sum(len(row.response) for row in rows),
    }


def _rows(opened: toy.Toy, answers: int, length: int) -> list[Row]:
    return [
        Row(index=row.index, group=row.group, prompt=row.prompt, response=tuple(10 + (row.index + n) % 200 for n in range(length)))
        for row in toy.rows(opened, answers=answers, tokens=3)
    ]


def _halving(settings: Settings, files: toy.Files, report: Report) -> None:
    """Three updates from the same weights: with small micro-batches, with as much as it likes, and with too little for that."""
    probe = toy.open_toy(files, device="cpu")
    answers, length = SIZES[settings.cuda]
    rows = _rows(probe, answers, length)
    whole = sum(len(row.response) for row in rows) + sum(len(prompts[0].ids) for prompts in probe.prompts.values())
    del probe
    if settings.cuda:
        _update(settings, files, whole // 4, toy.Plain(), None)  # what libraries keep from their first call on is not the update's
    small = _update(settings, files, whole // 4, toy.Plain(), None)
    held_small, peak_small = small.pop("held"), small["peak"]
    objective: toy.Plain = Refusing() if not settings.cuda else toy.Plain()
    most, large = None, small
    if settings.cuda:
        large = _update(settings, files, HUGE, toy.Plain(), None)
        most = (peak_small + large["peak"]) // 2
    # halved twice it is the first one's budget; three times at most are allowed
    tight = _update(settings, files, 4 * (whole // 4), objective, most)
    changes = [small["change"], tight["change"]]
    largest = max(float(change.abs().max()) for change in changes[0].values())
    apart = sum(float((changes[0][name] - changes[1][name]).abs().sum()) for name in changes[0])
    count = sum(change.numel() for change in changes[0].values())
    report.line(
        "halving",
        equals("applied", tight["applied"], True),
        at_most("budget left", tight["budget"] / whole, 0.5),
        at_most("mean difference of the update", apart / count / largest, CLOSE),
        at_most("memory afterwards", tight["held"] / max(1, held_small), LEFT),
        *([told("peak", tight["peak"] / 2**30, "GiB"), told("peak without limit", large["peak"] / 2**30, "GiB")] if settings.cuda else []),
        note="" if settings.cuda else "on a CPU the objective says that memory is out",
    )
