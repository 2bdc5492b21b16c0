"""`vlmrl check` of a machine: versions against the supported ranges, devices, video decoders, optional parts and how to get them.

Nothing here trains, downloads or reads a secret: of the environment only whether a variable is set is told.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlmrl import __version__

Status = Literal["ok", "absent", "problem"]

OPTIONAL = {
    "bitsandbytes": "optim.kind: adamw8bit and model.quantize: nf4; pip install 'vlmrl[bitsandbytes]'",
    "browsergym-core": "environment browsergym, and its browser (playwright install chromium): pip install 'vlmrl[browsergym]'",
    "decord": "media.decoder: decord (auto is PyAV); pip install 'vlmrl[decord]'",
    "torchcodec": "media.decoder: torchcodec (auto is PyAV), with FFmpeg's libraries; pip install 'vlmrl[torchcodec]'",
    "deepspeed": "train.sharding: zero2 and zero3; pip install 'vlmrl[deepspeed]'",
    "flash-attn": "model.attention: flash_attention_2; needs a CUDA machine, and torch first: "
    "pip install --no-build-isolation 'vlmrl[flash]'",
    "liger-kernel": "model.kernels: liger; needs a CUDA machine: pip install 'vlmrl[liger]'",
    "lmms-eval": "the bridge to lmms-eval; its pins (av < 16, another math-verify) do not fit ours, so it comes without them: "
    "pip install 'vlmrl[lmms]' && pip install --no-deps lmms-eval==0.7.3",
    "gymnasium": "environment gymnasium; pip install 'vlmrl[gymnasium]'",
    "miniwob": "environment miniwob, which also needs Chromium (apt-get install chromium-headless-shell); pip install 'vlmrl[miniwob]'",
    "num2words": "SmolVLM's processor; pip install 'vlmrl[smolvlm]'",
    "openpyxl": "vlmrl eval --import of tables in XLSX; pip install 'vlmrl[xlsx]'",
    "onnxruntime": "the tool read_text of the environment image_tools; pip install 'vlmrl[ocr]'",
    "peft": "model.lora: low-rank adapters; pip install 'vlmrl[lora]'",
    "rapidocr": "the tool read_text of the environment image_tools; pip install 'vlmrl[ocr]'",
    "starlette": "vlmrl serve and vlmrl view; pip install 'vlmrl[serve]' or 'vlmrl[view]'",
    "uvicorn": "vlmrl serve and vlmrl view; pip install 'vlmrl[serve]' or 'vlmrl[view]'",
    "vllm": "rollout.engine: vllm, vlmrl eval --engine vllm, or a judge served on this machine: pip install 'vlmrl[vllm]'",
    "websockets": "environment openenv; pip install 'vlmrl[openenv]'",
    "wandb": "run.trackers: [wandb]; pip install wandb, or 'vlmrl[trackers]' for all of them",
    "trackio": "run.trackers: [trackio]; pip install trackio",
    "swanlab": "run.trackers: [swanlab]; pip install swanlab",
    "mlflow": "run.trackers: [mlflow]; pip install mlflow, or all trackers: pip install 'vlmrl[trackers]'",
}
"""Distribution -> what it is for and how to get it."""

DECODERS = ("av", "decord")
"""Packages that are told among the decoders, by whether they load, and not among the optional ones once more."""
COLOURS: dict[Status, str] = {"ok": "green", "absent": "yellow", "problem": "red"}
"""How a status is shown."""
NEWER = "newer than what was tested; vlmrl tools pins prints versions that were"
_VARIABLES = ("HF_TOKEN", "WANDB_API_KEY", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the table."""

    area: str
    item: str
    found: str
    status: Status = "ok"
    advice: str = ""


def examine() -> list[Finding]:
    """Everything, in the order in which it is shown. `problem` lines are what keeps vlmrl from working here."""
    return [*_python(), *_required(), *_devices(), *_decoders(), *_optional(), *_places()]


def examine_model(path: str) -> list[Finding]:
    """A model in a folder, from its config, the headers of its shards and the report of `vlmrl check` beside it. No weights are read."""
    from vlmrl.errors import ConfigError, VlmrlError
    from vlmrl.families import stored
    from vlmrl.families.report import report_of

    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        return [Finding(area="model", item=path, found="-", status="problem", advice="no config.json there; give the folder of a model")]
    try:
        kind = str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type"))
        count, size = stored.sizes(stored.stored(folder))
        report = report_of(path)
    except (ConfigError, VlmrlError, ValueError, AttributeError) as error:
        return [Finding(area="model", item=path, found="-", status="problem", advice=str(error))]
    out = [Finding(area="model", item=path, found=f"{kind}, {count / 1e6:,.1f} million numbers, {size / 2**30:.2f} GiB in shards")]
    found, status, advice = ("no report", "absent", f"vlmrl check {shlex.quote(path)} tries it") if report is None else report.told()
    return [*out, Finding(area="model", item="conform", found=found, status=status, advice=advice)]


def _python() -> list[Finding]:
    good = sys.version_info >= (3, 10)
    return [
        Finding(area="versions", item="vlmrl", found=__version__),
        Finding(
            area="versions",
            item="python",
            found=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
            status="ok" if good else "problem",
            advice="" if good else "Python 3.10 or newer is needed",
        ),
    ]


def _required() -> list[Finding]:
    """The declared dependencies, each against its declared range."""
    try:
        declared = importlib.metadata.requires("vlmrl") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding(area="versions", item="vlmrl", found="not installed", status="problem", advice="bash scripts/setup.sh")]
    try:
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return [Finding(area="versions", item="packaging", found="-", status="problem", advice="bash scripts/setup.sh")]
    out: list[Finding] = []
    for requirement in map(Requirement, declared):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        wanted = str(requirement.specifier)
        if version is None:
            out.append(Finding(area="versions", item=requirement.name, found="-", status="problem", advice="bash scripts/setup.sh"))
        elif not requirement.specifier.contains(version, prereleases=True):
            least = SpecifierSet(",".join(str(one) for one in requirement.specifier if not one.operator.startswith("<")))
            beyond = requirement.name in ("torch", "transformers") and least.contains(version, prereleases=True)
            advice = NEWER if beyond else f"{requirement.name}{wanted} is needed"
            status: Status = "absent" if beyond else "problem"
            out.append(Finding(area="versions", item=requirement.name, found=version, status=status, advice=advice))
        else:
            out.append(Finding(area="versions", item=requirement.name, found=f"{version}{f' ({wanted})' if wanted else ''}"))
    return out


def _devices() -> list[Finding]:
    loaded = _loads("torch")
    if loaded is not None:
        return [Finding(area="devices", item="torch", found="-", status="problem", advice=loaded)]
    import torch

    from vlmrl.compat import ensure_torchvision

    out = [
        Finding(area="devices", item="cpu", found=f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"),
        Finding(area="devices", item="torchvision", found=ensure_torchvision()),
    ]
    if not torch.cuda.is_available():
        built = torch.version.cuda
        advice = "" if built is None else f"torch is built for CUDA {built} but sees no device: check the driver with nvidia-smi"
        return [*out, Finding(area="devices", item="cuda", found="none", status="absent", advice=advice)]
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        out.append(
            Finding(
                area="devices",
                item=f"cuda:{i}",
                found=f"{torch.cuda.get_device_name(i)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free",
            )
        )
    return out


def _decoders() -> list[Finding]:
    """PyAV must load: it reads all headers and checks decord's frames. decord is needed only where a recipe asks for it."""
    problems = {name: _loads(name) for name in DECODERS}
    return [
        Finding(
            area="decoders",
            item=name,
            found="-" if problem is not None else str(_version(name)),
            status="ok" if problem is None else "problem" if name == "av" else "absent",
            advice="" if problem is None else f"{problem}; {OPTIONAL.get(name, f'pip install {name}')}",
        )
        for name, problem in problems.items()
    ]


def _optional() -> list[Finding]:
    found = {name: _version(name) for name in OPTIONAL if name not in DECODERS}
    return [
        Finding(
            area="optional", item=name, found=version or "-", status="ok" if version else "absent", advice="" if version else OPTIONAL[name]
        )
        for name, version in found.items()
    ]


def _places() -> list[Finding]:
    """Free disk where runs and models go, and which variables are set (never their values)."""
    hub = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    out: list[Finding] = []
    for item, path in (("working directory", Path.cwd()), ("model cache", hub)):
        existing = next(p for p in (path, *path.parents) if p.exists())
        out.append(Finding(area="places", item=item, found=f"{path}, {shutil.disk_usage(existing).free / 2**30:.0f} GiB free"))
    return [*out, *(Finding(area="places", item=name, found="set" if name in os.environ else "not set") for name in _VARIABLES)]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _loads(module: str) -> str | None:
    """None when the module imports, else why not (a missing package or a shared library that does not load)."""
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else module}"
    return None
