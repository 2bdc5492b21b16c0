"""What the machine has: versions, devices, memory, disk, links between GPUs, and packages that are installed and do not load."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_check.base import Number, Report, Settings, at_least, equals, told

PACKAGES = {"flash_attn": "flash-attn", "vllm": "vllm", "deepspeed": "deepspeed", "peft": "peft", "liger_kernel": "liger-kernel"}
"""Optional: module -> distribution."""
PREPARED = "import vlmrl"
"""Puts right what torchvision may lack, as in every process of ours."""
GIB = 2**30
IMPORT_SECONDS = 180.0


def check_environment(settings: Settings, report: Report) -> None:
    """Versions, devices, memory, disk, links between GPUs, optional packages."""
    report.attempt("versions", lambda: _versions(report))
    report.attempt("device", lambda: _devices(settings, report))
    report.attempt("host", lambda: _host(settings, report))
    report.attempt("links", lambda: _links(settings, report))
    for module, distribution in PACKAGES.items():
        report.attempt(f"package-{distribution}", lambda m=module, d=distribution: _package(m, d, report))


def _versions(report: Report) -> None:
    import torch
    import transformers

    from vlmrl.doctor import examine

    problems = [finding for finding in examine() if finding.status == "problem"]
    report.line(
        "versions",
        equals("problems", len(problems), 0),
        told("torch", torch.__version__),
        told("built for CUDA", str(torch.version.cuda)),
        told("transformers", transformers.__version__),
        told("python", ".".join(map(str, sys.version_info[:3]))),
        note="; ".join(f"{finding.item} {finding.found}: {finding.advice}" for finding in problems),
    )


def _devices(settings: Settings, report: Report) -> None:
    import torch

    if not settings.cuda:
        if torch.version.cuda is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
            report.line("device", note=f"torch is built for CUDA {torch.version.cuda} but sees no device; look at nvidia-smi", failed=True)
        else:
            report.skip("device", "no CUDA device, or --device cpu: everything below ran on the CPU")
        return
    driver = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    for number in range(settings.gpus):
        free, total = torch.cuda.mem_get_info(number)
        major, minor = torch.cuda.get_device_capability(number)
        report.line(
            f"device-{number}",
            at_least("free share of memory", free / total, 0.9),
            at_least("capability", float(f"{major}.{minor}"), 8.0),
            equals("bfloat16", torch.cuda.is_bf16_supported(), True),
            told("memory", total / GIB, "GiB"),
            told("name", torch.cuda.get_device_name(number)),
            told("driver", (driver.splitlines() or ["?"])[0]),
            note="" if free / total >= 0.9 else "another process holds memory: look at nvidia-smi",
        )


def _host(settings: Settings, report: Report) -> None:
    memory, disk = available_memory(), shutil.disk_usage(settings.work).free
    report.line(
        "host",
        at_least("free memory", memory / GIB, 32.0 if settings.cuda else 2.0, "GiB"),
        at_least("free disk", disk / GIB, 30.0 if settings.cuda else 2.0, "GiB"),
        told("cores", os.cpu_count() or 0),
        told("load", round(os.getloadavg()[0], 1)),
    )


def available_memory() -> int:
    """Bytes of host memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _links(settings: Settings, report: Report) -> None:
    import torch

    if settings.gpus < 2:
        report.skip("links", f"{settings.gpus} GPUs: nothing to link")
        return
    pairs = [(a, b) for a in range(settings.gpus) for b in range(settings.gpus) if a != b]
    peers = sum(torch.cuda.can_device_access_peer(a, b) for a, b in pairs)
    topology = _said("nvidia-smi", "topo", "-m")
    links = sorted({word for word in topology.split() if word.startswith("NV") and word[2:].isdigit()})
    report.line(
        "links",
        told("pairs with peer access", f"{peers} of {len(pairs)}"),
        told("NVLink", ", ".join(links) or "none"),
        note="" if peers == len(pairs) else "without peer access gradients go through host memory: slower, not wrong",
    )


def _package(module: str, distribution: str, report: Report) -> None:
    """Installed is not enough: a wheel for another torch fails in its first import."""
    if importlib.util.find_spec(module) is None:
        report.skip(f"package-{distribution}", "not installed; nothing needs it unless a recipe asks for it")
        return
    done = subprocess.run(
        [sys.executable, "-c", f"{PREPARED}; import {module}"], capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    numbers: list[Number] = [equals("imports", done.returncode == 0, True), told("version", _version(distribution))]
    report.line(f"package-{distribution}", *numbers, note="" if done.returncode == 0 else last[:300])


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _said(*command: str) -> str:
    """What a command prints; nothing where it does not exist."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
