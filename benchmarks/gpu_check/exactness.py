"""Determinism: the same steps twice, and killed and resumed, must give the same bits."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

import torch
from safetensors import safe_open

from benchmarks.gpu_check import kernels, toy, training
from benchmarks.gpu_check.base import Report, Settings, equals, told

KILL = "step.after_update@4:kill"
"""Behind the update of the fourth step; the checkpoint is that of the second."""
STEPS, EVERY = 5, 2
BACKENDS = ("auto", "flash")
"""`flash` again by itself: its backward adds up in any order unless it is told not to."""


def check_resume(settings: Settings, report: Report) -> None:
    """Five steps twice, and again with kill -9 behind the fourth: digests of the weights, and the first tensor that differs."""
    files = toy.make(settings.work)
    dtype = "bfloat16" if settings.cuda else "float32"
    reasons = kernels.available(torch.device(settings.device), kernels.TYPES[dtype])
    for backend in BACKENDS:
        why = reasons.get(backend)
        if why is not None:
            report.skip(backend, why)
        else:
            report.attempt(backend, lambda b=backend: _resume(settings, files, dtype, b, report))


def _resume(settings: Settings, files: toy.Files, dtype: str, backend: str, report: Report) -> None:
    folder = toy.fresh(settings.work / f"resume-{backend}")

    def run(name: str, fault: str = "") -> tuple[Path, int]:
        cfg = toy.recipe(files, folder / name, device=settings.device, dtype=dtype, backend=backend, steps=STEPS, every=EVERY)
        code, said = training.start(cfg, folder / name, fault=fault)
        if code != (-signal.SIGKILL if fault else 0):
            raise RuntimeError(f"the run '{name}' ended with {code}: {(said.strip().splitlines() or ['no word'])[-1]}")
        return folder / name / cfg.run.name / "final" / "model.safetensors", code

    first, _ = run("first")

    def twice() -> None:
        second, _ = run("second")
        report.line(
            f"{backend}.twice",
            equals("weights", differs(first, second), "equal"),
            equals("trained", differs(files.model / "model.safetensors", first) not in ("equal", "other names"), True),
            told("digest", digest(first)),
            told("type", dtype),
        )

    def killed() -> None:
        _, code = run("killed", KILL)
        resumed, _ = run("killed")
        report.line(f"{backend}.killed", equals("weights", differs(first, resumed), "equal"), told("killed by signal", -code))

    report.attempt(f"{backend}.twice", twice)
    report.attempt(f"{backend}.killed", killed)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def differs(one: Path, other: Path) -> str:
    """`equal`, or the first tensor in the order of names that differs, and by how much."""
    with safe_open(one, "pt") as a, safe_open(other, "pt") as b:
        if sorted(a.keys()) != sorted(b.keys()):
            return "other names"
        unequal = [name for name in sorted(a.keys()) if not torch.equal(a.get_tensor(name), b.get_tensor(name))]
        if not unequal:
            return "equal"
        far = float((a.get_tensor(unequal[0]).double() - b.get_tensor(unequal[0]).double()).abs().max())
        return f"{len(unequal)} differ, first {unequal[0]} by {far:.1e}"
