"""Remembers what a GPU's use takes beyond tensors, as the last run on this machine measured it, and gives it to a plan in place of a guess.

One JSON file beside the caches, by the name of the device and the version of torch. A file that cannot be read is no reason to plan
nothing: the guess is taken then, and that is said.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from vlmrl import fs
from vlmrl.extras.plan.gpus import Gpu
from vlmrl.extras.plan.settings import SLACK

FILE = Path("~/.cache/vlmrl/slack.json")


@dataclass(frozen=True, kw_only=True)
class Slack:
    """Bytes beyond tensors, and where the number comes from."""

    bytes: int = SLACK
    source: str = "a guess: no run on this machine has measured it"


@dataclass(frozen=True, kw_only=True)
class RunPeaks:
    """What a run saw at its peaks, in bytes."""

    slack: int
    allocated: int
    reserved: int
    run: str


def remember(device: str, torch: str, seen: RunPeaks, file: Path | None = None) -> None:
    """Keep what the last run on a device with this version of torch measured.

    Raises:
        StorageError: the file cannot be written.
    """
    path = (file or FILE).expanduser()
    fs.mkdir(path.parent)
    known = _read(path) or {}
    fs.write_text(path, json.dumps({**known, _key(device, torch): asdict(seen)}, indent=1, sort_keys=True) + "\n")


def slack_of(gpu: Gpu, torch: str | None = None, file: Path | None = None) -> Slack:
    """The slack to plan with for a type of GPU: as measured with the installed torch (or the version `torch`), else the guess."""
    path = (file or FILE).expanduser()
    known = _read(path)
    if known is None:
        return Slack(source=f"a guess: {path} cannot be read") if path.exists() else Slack()
    torch = torch or _installed()
    for key, seen in known.items():
        device, _, with_torch = key.rpartition(", torch ")
        if with_torch == torch and is_a(gpu, device):
            return Slack(bytes=int(seen["slack"]), source=f"measured on {device} with torch {torch} by the run '{seen['run']}'")
    return Slack()


def is_a(gpu: Gpu, device: str) -> bool:
    """Whether a device with this name, as its driver tells it, is of a type: `NVIDIA GeForce RTX 4090` is an `rtx4090`."""
    words = r"\s?".join(re.findall(r"[a-z]+|[0-9]+", gpu.name))
    return re.search(rf"\b{words}\b", device.lower()) is not None


def _key(device: str, torch: str) -> str:
    return f"{device}, torch {torch}"


def _installed() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:  # planned on a machine that does not train
        return ""


def _read(path: Path) -> dict[str, dict[str, Any]] | None:
    """The file's values; None where it is not there or not as we write it."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):  # said by who asks
        return None
    if not isinstance(found, dict):
        return None
    values = cast("dict[str, dict[str, Any]]", found)
    return values if all(isinstance(one.get("slack"), int) and "run" in one for one in values.values()) else None
