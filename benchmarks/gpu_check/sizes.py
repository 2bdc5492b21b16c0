"""A model of the shape of Qwen2.5-VL 3B with random weights, as much of it as the device holds: memory, speed and utilisation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.base import Number, Report, Settings, at_least, at_most, equals, first_line, told
from benchmarks.gpu_check.kernels import mode
from benchmarks.gpu_check.models import build, open_model
from benchmarks.step.flops import decoder_flops, model_shape, tower_flops, update_flops
from vlmrl.errors import NumericsError
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.memory import rollout as plan_rollout
from vlmrl.extras.plan.model import shape_of
from vlmrl.extras.plan.settings import Settings as PlanSettings
from vlmrl.policy.pack import Row, attention_pairs
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.train import updates
from vlmrl.train.step import optimizer_step, score_rows
from vlmrl.types import GenerationSettings, MediaHandle, Prompt, Request, Sample

GIB = 2**30
BYTES_OF_STATE = 16
"""Per weight: itself, its gradient and two moments, all float32."""
UTILISED = {"cuda": 0.05, "cpu": 0.01}
"""Least share of the rate of a large matrix product. It finds what runs on a wrong path, not what could be tuned."""
EXACT = 1.02
PLANNED = 1.1
"""Most memory of a rollout above the state, as a share of what `vlmrl plan` reckons."""
HELD = 1.3
"""Most memory that torch holds, as a share of what tensors took at most: beyond it, memory lies in pieces."""
IN_ORDER = 1.5
"""Most time of a decoded token in deterministic mode, as a share of that without."""


@dataclasses.dataclass(kw_only=True)
class Sized:
    """A loaded model with what is measured on it."""

    policy: Any
    shape: Any
    device: str
    rate: float
    """Operations per second of a large matrix product in the compute type."""
    weights: int
    group: int
    completion: int
    label: str

    @property
    def floor(self) -> float:
        return UTILISED[self.device]


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(act: Callable[[], Any], device: str, *, warm: bool = True) -> tuple[Any, float, float]:
    """(result, seconds, GiB at most on the device) of the second of two calls."""
    if warm:
        act()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = clock(device)
    out = act()
    seconds = clock(device) - began
    return out, seconds, torch.cuda.max_memory_allocated() / GIB if device == "cuda" else 0.0


def product_rate(device: str, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product: what there is to be utilised."""
    n = 8192 if device == "cuda" else 768
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    best = min(timed(lambda: a @ b, device)[1] for _ in range(5))
    return 2.0 * n**3 / best


def _peak(sized: Sized, peak: float) -> list[Number]:
    return [told("peak", peak, "GiB")] if sized.device == "cuda" else []


def _held(sized: Sized, peak: float) -> list[Number]:
    """After what was measured: is the memory that torch holds that of the tensors?"""
    return [at_most("held / peak", torch.cuda.max_memory_reserved() / GIB / peak, HELD)] if sized.device == "cuda" else []


def planned(sized: Sized, prompt: int, tokens: int) -> float:
    """GiB that a rollout of one prompt takes beside the state, as `vlmrl plan` reckons."""
    like = PlanSettings(
        shape=shape_of(sized.policy.model.config.to_dict()),
        gpu=gpu_of("h100"),
        gpus=1,
        dtype="bfloat16" if sized.device == "cuda" else "float32",
        groups=1,
        answers=sized.group,
        prompt=prompt,
        answer=tokens,
    )
    return plan_rollout(like, 0) / GIB


def check_size(settings: Settings, report: Report) -> None:
    """A 3B-shaped random model (CPU: a tiny one): memory and speed of load, score, update, rollout, and the vision tower."""
    sized = _load(settings, report)
    lengths = settings.pick(gpu=(1024, 8192), cpu=(64, 256), quick=(1024,) if settings.cuda else (64,))
    for prompt in lengths:
        report.attempt(f"score-{prompt}", lambda p=prompt: _score(sized, p, report))
        report.attempt(f"rollout-{prompt}", lambda p=prompt: _rollout(settings, sized, p, report))
    report.attempt(f"deterministic-{lengths[0]}", lambda: _in_order(settings, sized, lengths[0], report))
    for tokens in settings.pick(gpu=(8192, 32768), cpu=(256, 1024), quick=(8192,) if settings.cuda else (256,)):
        report.attempt(f"tower-{tokens}", lambda t=tokens: _tower(sized, t, report))
    for recompute in (False, True):
        for prompt in lengths:
            part = f"update-{prompt}{'.recomputed' if recompute else ''}"
            must_fit = not settings.cuda or (recompute and prompt == lengths[0])
            report.attempt(part, lambda n=part, p=prompt, r=recompute, m=must_fit: _update_or_tell(sized, n, p, r, m, report))


def _load(settings: Settings, report: Report) -> Sized:
    """Write the model and load it the way a run does."""
    if settings.cuda:
        torch.cuda.reset_peak_memory_stats()
    folder, label = build(settings)
    began = clock(settings.device)
    policy = open_model(folder, settings)
    seconds = clock(settings.device) - began
    weights = sum(p.numel() for p in policy.model.parameters())
    holds = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    there = torch.cuda.memory_allocated() if settings.cuda else holds
    report.line(
        "load",
        at_most("memory / (4 bytes x weights)", there / (4 * weights), EXACT),
        told("seconds", seconds, "s"),
        told("weights", weights / 1e9, "billion"),
        *([told("peak", torch.cuda.max_memory_allocated() / GIB, "GiB")] if settings.cuda else []),
        note=label,
    )
    group, completion = settings.pick(gpu=(8, 256), cpu=(4, 16), quick=(8, 256) if settings.cuda else (4, 16))
    rate = product_rate(settings.device, policy.compute)
    shape = model_shape(policy.model.config)
    return Sized(
        policy=policy, shape=shape, device=settings.device, rate=rate, weights=weights, group=group, completion=completion, label=label
    )


def text_prompt(tokens: int, seed: int = 0) -> Prompt:
    """Random text of exactly that many tokens."""
    ids = np.random.Generator(np.random.Philox(seed)).integers(10, 250, tokens)
    sample = Sample(id=f"size-{seed}", task="size", answer_type="number", question="?", media=(), answer="1", gt={}, source="generated")
    return Prompt(sample=sample, ids=tuple(int(i) for i in ids), media=(), spans=(), answer_format="think_or_not")


def _rows(sized: Sized, prompt: int) -> list[Row]:
    one = text_prompt(prompt)
    draw = np.random.Generator(np.random.Philox(1))
    answers = draw.integers(10, 250, (sized.group, sized.completion))
    return [Row(index=n, group=0, prompt=one, response=tuple(int(i) for i in ids)) for n, ids in enumerate(answers)]


def _learner(sized: Sized, prompt: int, recompute: bool = False) -> Any:
    nothing = VisionCache(_NoPixels(), budget_bytes=1)
    budget = prompt + sized.group * sized.completion
    return toy.learner(sized.policy, nothing, budget=budget, lr=1e-7, checkpointing=recompute)


class _NoPixels:
    def get_key(self, key: str) -> Any:
        raise KeyError(key)


def _score(sized: Sized, prompt: int, report: Report) -> None:
    rows = _rows(sized, prompt)
    learner = _learner(sized, prompt)
    got, seconds, peak = timed(lambda: score_rows(learner, rows), sized.device)
    tokens = prompt + sized.group * sized.completion
    pairs = attention_pairs(prompt, [sized.completion] * sized.group)
    work = decoder_flops(sized.shape, tokens=tokens, pairs=pairs, scored=sized.group * sized.completion)
    report.line(
        f"score-{prompt}",
        equals("finite", bool(got.isfinite().all()), True),
        at_least("utilised", work.total / seconds / sized.rate, sized.floor),
        told("tokens/s", tokens / seconds),
        *_peak(sized, peak),
    )


def _update_or_tell(sized: Sized, part: str, prompt: int, recompute: bool, must_fit: bool, report: Report) -> None:
    """That a long prompt does not fit without recomputation is a finding about the machine, and no fault."""
    try:
        _update(sized, part, prompt, recompute, report)
    except NumericsError as error:
        if must_fit:
            raise
        report.line(part, told("fits", False), note=first_line(error))
    finally:
        updates.recompute(sized.policy.model, on=False)
        for parameter in sized.policy.model.parameters():
            parameter.grad = None
        if sized.device == "cuda":
            torch.cuda.empty_cache()


def _update(sized: Sized, part: str, prompt: int, recompute: bool, report: Report) -> None:
    """One update on a group. Where memory is short the step halves its token budget by itself."""
    rows = _rows(sized, prompt)
    learner = _learner(sized, prompt, recompute)
    asked = learner.max_tokens_per_microbatch
    batch = toy.minibatch(rows)
    done, seconds, peak = timed(lambda: optimizer_step(learner, batch, toy.Plain()), sized.device)
    tokens = prompt + sized.group * sized.completion
    work = update_flops(sized.shape, prompt=prompt, group=sized.group, completion=sized.completion, layout="shared_prefix")
    states = learner.updates.optimizer.state.values()
    moments = sum(t.numel() * t.element_size() for state in states for t in state.values() if isinstance(t, torch.Tensor) and t.ndim)
    fits = learner.max_tokens_per_microbatch == asked
    state = BYTES_OF_STATE * sized.weights
    numbers = [
        equals("applied", done.applied, True),
        at_most("state / (16 bytes x weights)", (moments + 2 * 4 * sized.weights) / state, EXACT),
        *([at_least("utilised", work.total / seconds / sized.rate, sized.floor)] if fits else []),
        told("seconds", seconds, "s"),
        told("tokens/s", tokens / seconds),
        told("fits", fits),
    ]
    if sized.device == "cuda":
        numbers += [told("peak", peak, "GiB"), told("state", state / GIB, "GiB"), told("tokens", tokens), *_held(sized, peak)]
    report.line(part, *numbers, note="" if fits else f"did not fit: ran with {learner.max_tokens_per_microbatch} tokens a micro-batch")


def _rollout(settings: Settings, sized: Sized, prompt: int, report: Report) -> None:
    tokens = settings.pick(gpu=64, cpu=32, quick=16)
    request = Request(prompt=text_prompt(prompt), seeds=tuple(range(sized.group)), ks=tuple(range(sized.group)))
    engine = HFEngine(sized.policy, VisionCache(_NoPixels(), budget_bytes=1))

    def act(count: int) -> Any:
        return engine.generate([request], GenerationSettings(max_new_tokens=count))

    # the shorter of two: what else runs on the machine only adds
    start = min(timed(lambda: act(1), sized.device)[1] for _ in range(2))
    before = torch.cuda.memory_allocated() / GIB if sized.device == "cuda" else 0.0
    out, first, peak = timed(lambda: act(tokens), sized.device, warm=False)
    seconds = min(first, timed(lambda: act(tokens), sized.device, warm=False)[1])
    report.line(
        f"rollout-{prompt}",
        equals("answers of full length", all(len(r.ids) == tokens for r in out[0]), True),
        told("decoded tokens/s", sized.group * (tokens - 1) / max(1e-9, seconds - start)),
        told("per decoding step", 1000 * (seconds - start) / (tokens - 1), "ms"),
        told("prompt", start, "s"),
        told("planned beside the state", planned(sized, prompt, tokens), "GiB"),
        *([at_most("beside the state / planned", (peak - before) / planned(sized, prompt, tokens), PLANNED)] if peak else []),
        *_peak(sized, peak),
        *_held(sized, peak),
    )


def _in_order(settings: Settings, sized: Sized, prompt: int, report: Report) -> None:
    """A decoded token with the mode of a run on and off, while fewer answers run than there are places."""
    tokens = settings.pick(gpu=64, cpu=16, quick=16)
    requests = [
        Request(prompt=text_prompt(prompt, seed=n), seeds=tuple(range(count)), ks=tuple(range(count)))
        for n, count in enumerate((sized.group, sized.group - 1))
    ]
    engine = HFEngine(sized.policy, VisionCache(_NoPixels(), budget_bytes=1))
    seconds: dict[bool, float] = {}
    for on in (True, False):
        with mode(on):
            first, long = (
                min(
                    timed(lambda c=count: engine.generate(requests, GenerationSettings(max_new_tokens=c)), sized.device)[1]
                    for _ in range(2)
                )
                for count in (1, tokens)
            )
        seconds[on] = (long - first) / (tokens - 1)
    ratio = seconds[True] / max(1e-9, seconds[False])
    number = at_most("time of a token / without the mode", ratio, IN_ORDER)
    report.line(
        f"deterministic-{prompt}",
        number if sized.device == "cuda" else told(number.name, ratio),
        told("with it", 1000 * seconds[True], "ms"),
        note="" if sized.device == "cuda" else "the CPU has one way to write",
    )


def _tower(sized: Sized, tokens: int, report: Report) -> None:
    """A video of frames of 1,024 visual tokens (CPU: 64) through the tower, as a run encodes it."""
    merge = sized.shape.tower.merge
    side = 32 if sized.device == "cuda" else 8
    grid = (tokens // side**2, side * merge, side * merge)
    patches = grid[0] * grid[1] * grid[2]
    draw, shape = np.random.Generator(np.random.Philox(2)), (patches, sized.shape.tower.patch_values)
    as_bytes = sized.policy.bundle.patch_dtype == np.uint8
    values = draw.integers(0, 256, shape, dtype=np.uint8) if as_bytes else draw.standard_normal(shape, dtype=np.float32)
    handle = MediaHandle(kind="video", key="generated", grid_thw=grid, tokens=tokens, seconds_per_grid=1.0)
    pixels: Any = SimpleNamespace(get_key=lambda key: SimpleNamespace(pixel_values=values))

    def act() -> Any:
        return VisionCache(pixels, budget_bytes=1).features(sized.policy, [handle], train=False)

    found, seconds, peak = timed(act, sized.device)
    report.line(
        f"tower-{tokens}",
        equals("finite", bool(found["generated"].merged.isfinite().all()), True),
        at_least("utilised", tower_flops(sized.shape.tower, grid).total / seconds / sized.rate, sized.floor / 5),
        told("seconds", seconds, "s"),
        told("visual tokens/s", tokens / seconds),
        *_peak(sized, peak),
    )
