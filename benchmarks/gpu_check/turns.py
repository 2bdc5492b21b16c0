"""Memory where rollout and training take turns: what the one leaves to the other, and what waits in the machine's memory."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.alive import held
from benchmarks.gpu_check.base import Number, Report, Settings, at_most, equals, told
from benchmarks.gpu_check.runs import train
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.host import blocks
from vlmrl.extras.plan.memory import memory
from vlmrl.extras.plan.model import shape_of
from vlmrl.extras.plan.settings import Settings as PlanSettings
from vlmrl.extras.scale import offload
from vlmrl.run import open_stage as opening
from vlmrl.run.tracking import read_metrics
from vlmrl.train.memory_ledger import TURNS, MemoryLedger, MemoryReading
from vlmrl.train.step import optimizer_step

GIB, MIB = 2**30, 2**20
STEPS = 3
LEFT = 0.1
"""Most that a rollout leaves beside the weights, as a share of them: rows, log-probs, features."""
CACHED = 0.75
"""GiB that the allocator may keep when it was told to give back what nobody uses; a whole one was put there before."""
BESIDE = 1.5
"""Most GiB that the first update takes above the plan: libraries load their kernels meanwhile. A rollout engine that does not give its
memory back for the update (`rollout.vllm.sleep`) is far beyond it."""
SEVERAL_TIMES = 1.45
"""A tensor that several products keep waits once for each; the plan counts it once (`docs/plan.md`)."""


@dataclass
class Seen:
    """Of a run."""

    emptied: int = 0
    cached: int = 0
    """Most bytes that the allocator still kept behind that."""
    left: list[int] = field(default_factory=list[int])
    """Bytes of tensors that came to be between the begin of a rollout and that of the training behind it."""
    outside: list[int] = field(default_factory=list[int])
    """Bytes of the device beside torch's, when each update was over."""
    planned: int = 0
    """Most bytes of training by the plan."""


@dataclass(frozen=True)
class Emptied:
    """A gauge that tells how often, and how well, the allocator's cache was given back."""

    gauge: Any
    seen: Seen
    cuda: bool

    @property
    def name(self) -> str | None:
        return self.gauge.name

    def read(self) -> MemoryReading:
        return self.gauge.read()

    def reset(self) -> None:
        self.gauge.reset()

    def outside(self) -> int:
        return self.gauge.outside()

    def empty(self) -> None:
        if self.cuda:
            torch.empty(GIB, dtype=torch.uint8, device="cuda")  # nobody keeps it: the cache does
        self.gauge.empty()
        self.seen.emptied += 1
        if self.cuda:
            self.seen.cached = max(self.seen.cached, torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


@dataclass(kw_only=True)
class Watching(MemoryLedger):
    """The ledger of a run, looked at where rollout and training begin."""

    seen: Seen
    device: str
    _before: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with super().phase(name):
            if name == TURNS[0]:
                self._before = held(self.device)
            elif name == TURNS[1]:
                self.seen.left.append(held(self.device) - self._before)
            yield
            if name == "update":
                self.seen.outside.append(self.gauge.outside())


@contextmanager
def watched(settings: Settings) -> Iterator[Seen]:
    """What the ledgers of runs within see."""
    seen, real = Seen(), opening.ledger_of

    def ledger(*args: Any, **how: Any) -> MemoryLedger:
        plain = real(*args, **how)
        seen.planned = max((plain.planned.get(name, 0) for name in (TURNS[1], "update")), default=0)
        gauge = Emptied(plain.gauge, seen, settings.cuda)
        return Watching(gauge=gauge, planned=plain.planned, seen=seen, device=settings.device)

    opening.ledger_of = ledger
    try:
        yield seen
    finally:
        opening.ledger_of = real


def turns(settings: Settings, files: toy.Files, report: Report) -> None:
    """RL steps of the toy recipe, on CUDA by vLLM in the same process where it is installed, which sleeps while the policy trains: what is
    there when training begins, whether the cache was given back at every turn, and on CUDA the peak of the first update against the plan.
    """
    engine = "vllm" if settings.cuda and importlib.util.find_spec("vllm") is not None else "hf"
    dtype = "bfloat16" if settings.cuda else "float32"
    root = toy.fresh(settings.work / "turns")
    cfg = toy.recipe(files, root, device=settings.device, dtype=dtype, steps=STEPS, engine=engine)
    if settings.cuda:
        torch.zeros(1, device="cuda")
    outside = _outside() if settings.cuda else 0
    with watched(settings) as seen:
        path = train(cfg)
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "grad_norm" in line]
    weights = sum(file.stat().st_size for file in files.model.glob("*.safetensors"))
    numbers = [
        equals("updates", sum(line["step/skipped"] == 0.0 for line in lines), STEPS),
        equals("caches given back", seen.emptied, 2 * STEPS - 1),
        # of the steps behind the first, in whose rollout libraries take what they keep
        at_most("left by a rollout / weights", max(seen.left[1:], default=0) / weights, LEFT),
    ]
    if settings.cuda:
        numbers += _first_update(lines[0], seen, outside)
    report.line("turns", *numbers, note=f"answers by {engine}" + ("" if settings.cuda else "; peaks are measured on CUDA alone"))


def _first_update(line: dict[str, Any], seen: Seen, outside: int) -> list[Number]:
    """With what an engine in this process or another took since the run began."""
    peak = MIB * max(float(line[f"memory/{name}/allocated"]) for name in (TURNS[1], "update"))
    above = peak + seen.outside[0] - outside - seen.planned
    return [
        at_most("kept in the cache", seen.cached / GIB, CACHED, "GiB"),
        at_most("first update above the plan", above / GIB, BESIDE, "GiB"),
        told("planned", seen.planned / GIB, "GiB"),
    ]


def _outside() -> int:
    """Bytes of the device that are not torch's in this process."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def pinned(settings: Settings, files: toy.Files, report: Report) -> None:
    """Updates whose activations wait in the machine's memory: as many bytes as planned, and no more from step to step."""
    opened = toy.open_toy(files, device=settings.device)
    answers, tokens = settings.pick(gpu=(16, 128), cpu=(4, 24), quick=(3, 12))
    rows = toy.rows(opened, answers=answers, tokens=tokens)
    learner = toy.learner(opened.policy, opened.vision, budget=10**6)
    learner.around = offload.offloaded
    batch = toy.minibatch(rows)
    sizes: list[int] = []
    applied = True
    for _ in range(STEPS):
        applied &= optimizer_step(learner, batch, toy.Plain()).applied
        gc.collect()
        sizes.append(sum(arena.nbytes for arena in offload._ARENAS.values()))  # pyright: ignore[reportPrivateUsage]
    arenas = list(offload._ARENAS.values())  # pyright: ignore[reportPrivateUsage]
    prompts = [one for prompts in opened.prompts.values() for one in prompts[:1]]
    plan = PlanSettings(
        shape=shape_of(opened.policy.model.config.to_dict()),
        gpu=gpu_of("h100"),
        gpus=1,
        dtype="float32",
        groups=len(prompts),
        answers=answers,
        prompt=max(len(prompt.ids) for prompt in prompts),
        answer=tokens,
        visual=max(sum(handle.tokens for handle in prompt.media) for prompt in prompts),
        recompute=False,
        offload_activations=True,
        engine="none",
    )
    planned = blocks(round(SEVERAL_TIMES * memory(plan).training.host))
    report.line(
        "pinned",
        equals("applied", applied, True),
        at_most("bytes / planned", sizes[-1] / planned, 1.0),
        at_most("grown over the steps", sizes[-1] - sizes[0], 0),
        at_most("tensors that were not given back", sum(arena.taken for arena in arenas), 0),
        *([equals("page-locked", all(arena.pinned for arena in arenas), True)] if settings.cuda else []),
        told("planned", planned / MIB, "MiB"),
        note="" if settings.cuda else "the CPU has one memory: nothing is page-locked",
    )
