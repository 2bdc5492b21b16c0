"""Two ranks: collectives on both kinds of memory, a rank without media, and how soon the others notice a rank that died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import toy
from benchmarks.gpu_check.base import Report, Settings, at_least, at_most, equals, told
from benchmarks.gpu_check.training import ROOT

CLOSE = 1e-4
"""Most difference of a gradient to that of one process, as a share of its largest value."""
NOTICED = 60.0
"""Seconds until a rank ends whose neighbour was killed."""
PATIENCE = 300.0
"""Seconds that a rank may take for anything before it counts as hanging."""
CONTROL = 4
"""Most calls of the control traffic in a step, each of which is a round over all ranks: what to expect of the passes, the denominator,
metrics and verdict, and one more for metrics that do not fit."""
MANY, SHARDS = 512, 4
"""Ranks of a large run, whose sockets are reckoned from two and from so many."""
KILL_AFTER = "working"
"""File that says that the ranks are at work."""


def check_ranks(settings: Settings, report: Report) -> None:
    """Two ranks (NCCL with two GPUs, else gloo on the CPU): sums, a rank with text alone, and one rank killed. Four ranks: calls of a step
    where weights lie in shards, and sockets. Two again: threads of an update in the machine's memory, and
    weights on their way to a rollout server."""
    toy.make(settings.work)
    device = "cuda" if settings.gpus > 1 else "cpu"
    note = "nccl and gloo" if device == "cuda" else f"gloo on the CPU: {settings.gpus} GPUs here"
    report.attempt("sums", lambda: _sums(settings, device, note, report))
    report.attempt("killed", lambda: _killed(settings, device, note, report))
    report.attempt("calls", lambda: _calls(settings, report))
    report.attempt("threads", lambda: _threads(settings, device, report))
    report.attempt("weights", lambda: _weights(settings, device, report))


def launch(settings: Settings, device: str, what: str, world: int, **more: str) -> list[subprocess.Popen[bytes]]:
    """`world` ranks without a launcher, which would end the others itself. `more`: of their environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out: list[subprocess.Popen[bytes]] = []
    for rank in range(world):
        env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if device == "cpu":
            env |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
        env |= more
        command = [sys.executable, "-m", "benchmarks.gpu_check.rank", what, device, str(settings.work)]
        log = (settings.work / f"rank-{what}-{world}-{rank}.log").open("wb")
        out.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT))
        log.close()
    return out


def wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int | None]:
    """Exit codes; None for a process that was still running after this time and was killed."""
    deadline = time.monotonic() + seconds
    out: list[int | None] = []
    for process in processes:
        try:
            out.append(process.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            out.append(None)
    return out


def last_words(settings: Settings, what: str, world: int) -> str:
    """The end of what the first rank with anything to say printed."""
    for rank in range(world):
        lines = (settings.work / f"rank-{what}-{world}-{rank}.log").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line or "error" in line]
        if errors:
            return f"rank {rank}: {errors[-1][:250]}"
    return "no word"


def _sums(settings: Settings, device: str, note: str, report: Report) -> None:
    found: dict[int, dict[str, Any]] = {}
    for world in (1, 2):
        codes = wait(launch(settings, device, "sums", world), PATIENCE)
        if codes != [0] * world:
            raise RuntimeError(f"{world} ranks ended with {codes}: {last_words(settings, 'sums', world)}")
        found[world] = json.loads((settings.work / f"sums-{world}.json").read_text())
    one, two = found[1], found[2]
    report.line("sums", equals("of host memory", two["host"], 3.0), equals("of device memory", two["device"], 3.0), note=note)
    report.line(
        "text-only",
        equals("updates", two["applied"], True),
        at_most("difference to one process", gradients_apart(one["file"], two["file"]), CLOSE),
        note=note,
    )


def _calls(settings: Settings, report: Report) -> None:
    """Four ranks, shards over pairs: what a step of two micro-batches calls, and what a rank of a large run keeps open."""
    device = "cuda" if settings.gpus >= SHARDS else "cpu"
    codes = wait(launch(settings, device, "calls", SHARDS), PATIENCE)
    if codes != [0] * SHARDS:
        raise RuntimeError(f"{SHARDS} ranks ended with {codes}: {last_words(settings, 'calls', SHARDS)}")
    found = json.loads((settings.work / "calls.json").read_text())
    report.line(
        "calls",
        equals("updates", found["applied"], True),
        at_most("of the control traffic", found["control"], CONTROL),
        at_most("sums between copies / units", found["sums"] / found["units"], 1.0),
        told("micro-batches", found["parts"]),
        note=f"{SHARDS} ranks on {device}",
    )
    two = json.loads((settings.work / "sums-2.json").read_text())["sockets"]
    each = (found["sockets"] - two) / (SHARDS - 2)
    report.line(
        "sockets",
        at_most(f"at {MANY} ranks / open files that are allowed", (two + each * (MANY - 2)) / found["allowed"], 1.0),
        told("of two ranks", two),
        told(f"of {SHARDS} ranks", found["sockets"]),
        told("allowed", found["allowed"]),
    )


def _threads(settings: Settings, device: str, report: Report) -> None:
    """Two ranks that a launcher gave one thread each, with offloaded weights. Each is told that it is alone on its machine, so that a
    machine with two cores shows whether they are used."""
    codes = wait(launch(settings, device, "threads", 2, OMP_NUM_THREADS="1", LOCAL_WORLD_SIZE="1"), PATIENCE)
    if codes != [0, 0]:
        raise RuntimeError(f"the ranks ended with {codes}: {last_words(settings, 'threads', 2)}")
    found = json.loads((settings.work / "threads.json").read_text())
    report.line(
        "threads",
        equals("updates", found["applied"], True),
        at_least("threads of the update / cores", min(found["within"], default=0) / found["cores"], 1.0),
        equals("threads behind it", found["behind"], found["before"]),
        told("cores", found["cores"]),
        note="one core: nothing can be seen here" if found["cores"] == 1 else "",
    )


def _weights(settings: Settings, device: str, report: Report) -> None:
    """A trainer and the worker of a rollout server: do the bits come that were sent."""
    codes = wait(launch(settings, device, "weights", 2), PATIENCE)
    if codes != [0, 0]:
        raise RuntimeError(f"the ranks ended with {codes}: {last_words(settings, 'weights', 2)}")
    found = json.loads((settings.work / "weights.json").read_text())
    note = "nccl" if device == "cuda" else f"gloo on the CPU: {settings.gpus} GPUs here"
    report.line(
        "weights",
        equals(
            "buckets that came as they were sent",
            sum(a == b for a, b in zip(found["sent"], found["came"], strict=True)),
            len(found["sent"]),
        ),
        told("fastest", found["rate"], "GiB/s"),
        note=note,
    )


def gradients_apart(one: str, other: str) -> float:
    """Largest difference of a gradient as a share of the largest value of its tensor."""
    from safetensors.torch import load_file

    a, b = load_file(one), load_file(other)
    if a.keys() != b.keys():
        return float("nan")
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max().clamp(min=1e-12)) for name in a)


def _killed(settings: Settings, device: str, note: str, report: Report) -> None:
    ready = settings.work / KILL_AFTER
    ready.unlink(missing_ok=True)
    processes = launch(settings, device, "killed", 2)
    try:
        _await(ready, processes, settings)
        began = time.monotonic()
        os.kill(processes[1].pid, signal.SIGKILL)
        (code,) = wait(processes[:1], NOTICED + 30)
        seconds = time.monotonic() - began
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    shown = "still running" if code is None else code
    report.line(
        "killed",
        at_most("noticed after", seconds, NOTICED, "s"),
        equals("ended with an error", code not in (0, None), True),
        told("exit code", shown),
        note=note,
    )


def _await(ready: Path, processes: list[subprocess.Popen[bytes]], settings: Settings) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready.exists():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            raise RuntimeError(f"the ranks did not start to work: {last_words(settings, 'killed', 2)}")
        time.sleep(0.05)
