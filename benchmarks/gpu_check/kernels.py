"""Attention over packed rows: every backend against the definition in float64, and the programs that flex compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.base import Report, Settings, at_most, equals, told
from vlmrl.errors import ConfigError
from vlmrl.policy import attention
from vlmrl.policy.pack import PrefixLayout, layout_of
from vlmrl.train.step import optimizer_step, rehearse

HEADS, KEY_HEADS, SIZE = 8, 2, 64
WORST = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest difference to float64 as a share of the largest value. flex in float32 may use TF32: `WORST_FLEX`."""
WORST_FLEX = 1e-3
BIAS = {"float32": 1e-4, "bfloat16": 3e-3}
"""Rounding scatters around the right value; a wrong factor does not. This is how far the best factor may be from 1."""
MOST_COMPILATIONS = 4
"""One or two for each of forward and backward: a length of its own must not be a program of its own."""
LATE_MS = 500.0
REPEATS = 5
"""Passes over the same numbers that must give the same bits."""
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def random_layouts(count: int, longest: int) -> list[PrefixLayout]:
    """Groups with prompts of any length and up to five answers, some of them empty or alone."""
    out: list[PrefixLayout] = []
    for seed in range(count):
        draw = np.random.Generator(np.random.Philox(seed))
        groups: list[tuple[int, tuple[int, ...]]] = []
        for _ in range(int(draw.integers(1, 4))):
            answers = tuple(int(n) for n in draw.integers(0, max(2, longest // 4), size=int(draw.integers(1, 6))))
            groups.append((int(draw.integers(1, longest)), answers))
        out.append(layout_of(groups))
    return out


def available(device: torch.device, dtype: torch.dtype) -> dict[str, str | None]:
    """Backend -> why it cannot run here, or None."""
    out: dict[str, str | None] = {}
    for name in get_args(attention.Backend):
        try:
            attention.choose(name, device, dtype)
            out[name] = None
        except ConfigError as error:
            out[name] = str(error).removeprefix("model.prefix_backend: ")
    return out


def _inputs(layout: PrefixLayout, seed: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Query, key, value and the output's gradient, rounded to the type, on the CPU."""
    g = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(1, heads, layout.tokens, SIZE, generator=g).to(dtype) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return tensors, torch.randn(1, layout.tokens, HEADS, SIZE, generator=g).to(dtype)


def run(backend: str, layout: PrefixLayout, inputs: tuple[list[Tensor], Tensor], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Output and the gradients of query, key and value, float64 on the CPU."""
    q, k, v = (x.to(device=device, dtype=dtype).detach().requires_grad_() for x in inputs[0])
    named: Any = backend
    out, _ = attention.prefix_attention(
        None, q, k, v, None, fallback=_unused, scaling=SIZE**-0.5, prefix_layout=layout, prefix_backend=named
    )
    grads = torch.autograd.grad(out, (q, k, v), inputs[1].to(device=device, dtype=out.dtype))
    return [x.detach().cpu().double() for x in (out, *grads)]


def _unused(*_: Any, **__: Any) -> Any:
    raise AssertionError("a packed row goes through a backend")


def compare(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[list[float], float]:
    """(largest difference of each as a share of its largest value, how far the best common factor is from 1)."""
    worst = [float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in zip(got, wanted, strict=True)]
    factors = [float((a * b).sum() / (b * b).sum().clamp(min=1e-30)) for a, b in zip(got, wanted, strict=True)]
    return worst, max(abs(factor - 1) for factor in factors)


def check_attention(settings: Settings, report: Report) -> None:
    """Every backend in both types over random layouts: output and gradients against `dense` in float64 on the CPU."""
    device = torch.device(settings.device)
    layouts = random_layouts(settings.pick(gpu=20, cpu=20, quick=4), settings.pick(gpu=300, cpu=96, quick=48))
    for label, dtype in TYPES.items():
        wanted: list[list[Tensor]] = []
        for seed, layout in enumerate(layouts):
            wanted.append(run("dense", layout, _inputs(layout, seed, dtype), torch.device("cpu"), torch.float64))
        for backend, why in available(device, dtype).items():
            part = f"{backend}.{label}"
            if why is not None:
                report.skip(part, why)
                continue
            report.attempt(part, lambda b=backend, n=label, p=part, w=wanted: _judge(b, n, p, layouts, w, device, report))
    lengths = settings.pick(gpu=(4096, (512,) * 8), cpu=(96, (24, 17, 9)), quick=(1024, (64,) * 4) if settings.cuda else (48, (9, 5)))
    for backend, why in available(device, torch.bfloat16).items():
        part = f"{backend}.ordered"
        if why is not None:
            report.skip(part, why)
        else:
            report.attempt(part, lambda b=backend, p=part: _ordered(b, p, layout_of([lengths] * 2), device, report))


def _judge(
    backend: str, label: str, part: str, layouts: list[PrefixLayout], wanted: list[list[Tensor]], device: torch.device, report: Report
) -> None:
    output, gradient, bias = 0.0, 0.0, 0.0
    for seed, layout in enumerate(layouts):
        got = run(backend, layout, _inputs(layout, seed, TYPES[label]), device, TYPES[label])
        worst, factor = compare(got, wanted[seed])
        output, gradient, bias = max(output, worst[0]), max(gradient, *worst[1:]), max(bias, factor)
    limit = WORST_FLEX if backend == "flex" and label == "float32" else WORST[label]
    report.line(
        part,
        at_most("output", output, limit),
        at_most("gradient", gradient, limit),
        at_most("factor off by", bias, BIAS[label] if backend != "flex" else max(BIAS[label], 1e-3)),
        told("layouts", len(layouts)),
    )


@contextmanager
def mode(on: bool) -> Iterator[None]:
    """torch's deterministic mode on, as a run has it, or off."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _ordered(backend: str, part: str, layout: PrefixLayout, device: torch.device, report: Report) -> None:
    """The same pass again and again in 16 bits: a kernel that adds up in any order gives other bits, in dq above all."""
    inputs = _inputs(layout, 0, torch.bfloat16)

    def differing(on: bool) -> list[int]:
        with mode(on):
            first, *others = (run(backend, layout, inputs, device, torch.bfloat16) for _ in range(REPEATS))
        return [max(int((a != b).sum()) for b in again) for a, *again in zip(first, *others, strict=True)]

    counts = differing(True)
    report.line(
        part,
        *(at_most(f"{name} that differ", count, 0) for name, count in zip(("outputs", "dq", "dk", "dv"), counts, strict=True)),
        told("dq that differ without the mode", differing(False)[1]),
        told("passes", REPEATS),
    )


def count_compilations(call: Callable[[int], None], lengths: Sequence[int]) -> tuple[int, list[float]]:
    """(programs that torch compiled, milliseconds of each call) over calls with these lengths."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    times: list[float] = []
    for length in lengths:
        began = time.perf_counter()
        call(length)
        times.append(1000 * (time.perf_counter() - began))
    return int(counters["stats"]["unique_graphs"]), times


def judge_lengths(compiled: int, times: Sequence[float], report: Report) -> None:
    """The line of `lengths`. The first calls compile; a late one that takes long compiles again, or runs uncompiled."""
    report.line(
        "flex",
        at_most("compilations", compiled, MOST_COMPILATIONS),
        at_most("worst late call", max(times[len(times) // 2 :]), LATE_MS, "ms"),
        told("worst call", max(times), "ms"),
        told("lengths", len(times)),
    )


def check_lengths(settings: Settings, report: Report) -> None:
    """Fifty different lengths through flex, forward and backward: programs compiled, and the slowest call."""
    if not settings.cuda:
        report.skip("flex", "flex is compiled on CUDA only, and has no backward on the CPU")
        return
    device = torch.device(settings.device)
    lengths = [64 + 100 * n for n in range(settings.pick(gpu=50, cpu=0, quick=12))]

    def call(length: int) -> None:
        layout = layout_of([(length, (17, 40, 5))])
        run("flex", layout, _inputs(layout, length, torch.bfloat16), device, torch.bfloat16)

    report.attempt("flex", lambda: judge_lengths(*count_compilations(call, lengths), report))
    report.attempt("rehearsed", lambda: _rehearsed(settings, report))


def _rehearsed(settings: Settings, report: Report) -> None:
    """Programs that the first step still compiles behind a rehearsal: every rank would wait for them in the middle of it."""
    from torch._dynamo.utils import counters

    opened = toy.open_toy(toy.make(settings.work), device=settings.device, dtype="bfloat16", backend="flex")
    rows = toy.rows(opened, answers=3, tokens=12)
    learner = toy.learner(opened.policy, opened.vision, budget=10**6)
    torch.compiler.reset()
    rehearse(learner, rows)
    learner.updates.zero()
    counters.clear()
    done = optimizer_step(learner, toy.minibatch(rows), toy.Plain())
    report.line("rehearsed", equals("applied", done.applied, True), at_most("compilations", int(counters["stats"]["unique_graphs"]), 0))
