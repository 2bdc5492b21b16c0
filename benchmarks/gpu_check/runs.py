"""The real forward on the toy world: types that reach the kernels, RL steps, and what sampler, trainer and CPU say of the same tokens."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check import kernels, toy
from benchmarks.gpu_check.base import Report, Settings, at_least, at_most, equals, told
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.policy import attention
from vlmrl.policy.pack import Row
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui
from vlmrl.train.step import score_rows

TYPES = ("float32", "bfloat16")
GAP = {"float32": 1e-4, "bfloat16": 0.05}
"""Most mean |log-prob of the trainer - of the sampler|: the kernels differ, the weights do not."""
WORST = {"float32": 1e-3, "bfloat16": 0.5}
"""The same for one token."""
AGREES = 0.15
"""Most mean |log-prob in bfloat16 - in float32|."""


def watch(backend: str, seen: set[str]) -> Callable[[], None]:
    """Note the types that reach a backend; the result ends it."""
    table: Any = attention._BACKENDS  # pyright: ignore[reportPrivateUsage]
    real = table[backend]

    def noted(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        seen.add(", ".join(str(x.dtype).removeprefix("torch.") for x in (query, key, value)))
        return real(query, key, value, *rest)

    table[backend] = noted
    return lambda: table.__setitem__(backend, real)


def check_types(settings: Settings, report: Report) -> None:
    """The production forward and backward in bfloat16: the types that reach each backend, and its log-probs against float32."""
    device = torch.device(settings.device)
    files = toy.make(settings.work)
    reference = toy.open_toy(files, device="cpu", backend="dense")
    rows = toy.rows(reference, answers=3, tokens=12)
    wanted = toy.logprobs(reference, rows)
    for backend, why in kernels.available(device, torch.bfloat16).items():
        if why is not None:
            report.skip(backend, why)
        else:
            report.attempt(backend, lambda b=backend: _types(settings, files, b, rows, wanted, report))


def _types(settings: Settings, files: toy.Files, backend: str, rows: list[Any], wanted: Tensor, report: Report) -> None:
    opened = toy.open_toy(files, device=settings.device, dtype="bfloat16", backend=backend)
    seen: set[str] = set()
    end = watch(backend, seen)
    try:
        got, finite = toy.logprobs_with_gradient(opened, rows)
    finally:
        end()
    report.line(
        backend,
        equals("types", " | ".join(sorted(seen)), "bfloat16, bfloat16, bfloat16"),
        equals("gradients finite", finite, True),
        at_most("gap to float32", float((got - wanted).abs().sum() / toy.tokens(rows)), AGREES),
    )


def train(cfg: Config) -> Path:
    """Run a recipe in this process; its folder."""
    return train_from(loaded(cfg), Places(model=cfg.model.path, data=Path(cfg.data.root)), Ui(quiet=True))


def check_steps(settings: Settings, report: Report) -> None:
    """The toy recipe in both types: RL steps on text, pictures and videos, with the tower training."""
    files = toy.make(settings.work)
    steps = settings.pick(gpu=20, cpu=5, quick=2)
    for dtype in TYPES:
        report.attempt(dtype, lambda d=dtype: _steps(settings, files, d, steps, report))
    report.attempt("defaults", lambda: _defaults(settings, files, report))


def _defaults(settings: Settings, files: toy.Files, report: Report) -> None:
    """What a recipe gets that names neither a type nor kernels: types that reach attention, fused modules, and how memory grows."""
    cfg = toy.recipe(files, toy.fresh(settings.work / "steps-defaults"), device=settings.device, steps=1)
    plain = cfg.model_dump(mode="json", exclude_unset=True)
    for key in ("dtype", "prefix_backend"):
        plain["model"].pop(key, None)
    seen: set[str] = set()
    ends = [watch(backend, seen) for backend in attention._BACKENDS]  # pyright: ignore[reportPrivateUsage]
    fused: set[str] = set()
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, _: fused.add(_source(module)))
    try:
        train(Config.model_validate(plain))
    finally:
        hook.remove()
        for end in ends:
            end()
    wanted = "bfloat16" if settings.cuda else "float32"
    numbers = [equals("types", " | ".join(sorted(seen)), ", ".join([wanted] * 3))]
    if settings.cuda:
        held: Any = torch.cuda.memory._snapshot()  # pyright: ignore[reportPrivateUsage]
        numbers.append(equals("memory grows in place", bool(held["allocator_settings"]["expandable_segments"]), True))
        if importlib.util.find_spec("liger_kernel") is not None:
            numbers.append(equals("fused kernels", any("liger" in name for name in fused), True))
    report.line("defaults", *numbers)


def _source(module: torch.nn.Module) -> str:
    """The file of a module's forward: one that was put in its place is of another."""
    return str(getattr(module.forward, "__module__", ""))


def _steps(settings: Settings, files: toy.Files, dtype: str, steps: int, report: Report) -> None:
    root = toy.fresh(settings.work / f"steps-{dtype}")
    began = time.perf_counter()
    path = train(toy.recipe(files, root, device=settings.device, dtype=dtype, steps=steps))
    seconds = time.perf_counter() - began
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "grad_norm" in line]
    gaps = [float(line.get("sampling/logp_gap", math.nan)) for line in lines]
    walls = [float(line["wall"]) for line in lines]
    each = (walls[-1] - walls[0]) / (len(walls) - 1) if len(walls) > 1 else seconds
    report.line(
        dtype,
        equals("updates", sum(line["step/skipped"] == 0.0 for line in lines), steps),
        at_least("smallest gradient", min((float(line["grad_norm"]) for line in lines), default=0.0), 1e-8),
        at_most("worst gap", max(gaps, default=math.nan) if all(map(math.isfinite, gaps)) else math.nan, GAP[dtype]),
        told("step", each, "s"),
    )


def check_logprobs(settings: Settings, report: Report) -> None:
    """Log-probs of the same answers: sampler against trainer by modality, and the trainer against plain rows in float32 on the CPU."""
    files = toy.make(settings.work)
    reference = toy.open_toy(files, device="cpu", backend="dense")
    for dtype in TYPES:
        report.attempt(dtype, lambda d=dtype: _logprobs(settings, files, d, reference, report))


def _logprobs(settings: Settings, files: toy.Files, dtype: str, reference: toy.Toy, report: Report) -> None:
    opened = toy.open_toy(files, device=settings.device, dtype=dtype)
    count = settings.pick(gpu=toy.ROWS, cpu=2, quick=1)
    learner = toy.learner(opened.policy, opened.vision, budget=4096)
    for modality, prompts in opened.prompts.items():
        groups = toy.generate(opened, prompts[:count], answers=4, tokens=16)
        of = [
            Row(index=0, group=group, prompt=prompts[group], response=rollout.ids)
            for group, rollouts in enumerate(groups)
            for rollout in rollouts
        ]
        sampled = [rollout.logprobs for rollouts in groups for rollout in rollouts]
        trainer = score_rows(learner, of)
        gap = torch.cat([(trainer[n, : len(own)] - torch.tensor(own)).abs() for n, own in enumerate(sampled)])
        plain = difference(reference, trainer, of, reference.prompts[modality])
        report.line(
            f"{dtype}.{modality}",
            at_most("mean gap", float(gap.mean()), GAP[dtype]),
            at_most("worst gap", float(gap.max()), WORST[dtype]),
            at_most("mean off plain", float(plain.mean()), GAP[dtype]),
            at_most("worst off plain", float(plain.max()), WORST[dtype]),
            told("tokens", int(gap.numel())),
        )


def difference(reference: toy.Toy, trainer: Tensor, of: list[Row], prompts: list[Any]) -> Tensor:
    """|log-prob - that of the reference policy with one padded row per answer|, of all answer tokens."""
    own = [Row(index=row.index, group=row.group, prompt=prompts[row.group], response=row.response) for row in of]
    wanted = toy.logprobs(reference, own, layout="repeat")
    return torch.cat([(trainer[n, : len(row.response)] - wanted[n, : len(row.response)]).abs() for n, row in enumerate(of)])
