"""What shards cost: seconds of an update and bytes that ranks exchange, for every training engine in one run on two ranks.

    python benchmarks/shards.py [--steps 20] [--write docs/benchmarks/shards.md]

The ranks are processes on one CPU that talk over gloo, the model has about a million weights: ratios between engines on this machine, and
counts of bytes that hold anywhere. No statement about GPUs. Engines take turns step by step, so that what else the machine does hits all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
GATHERS = ("all_gather_into_tensor", "all_gather_single", "all_gather")
SUMS = ("all_reduce", "reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter", "reduce", "broadcast")
WARM_UP = 3


def count_bytes(counts: Counter[str]) -> None:
    """Count what torch's collectives move on this rank: the larger side of each, in bytes."""
    import torch
    import torch.distributed as library

    def size(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size()
        return sum(size(one) for one in value) if isinstance(value, (list, tuple)) else 0

    def counted(real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[kind] += max((size(value) for value in (*args, *kwargs.values())), default=0)
            return real(*args, **kwargs)

        return call

    for names, kind in ((GATHERS, "gathered"), (SUMS, "summed")):
        for name in names:
            if hasattr(library, name):
                setattr(library, name, counted(getattr(library, name), kind))


def rank(folder: Path, steps: int) -> None:
    """One of the two ranks."""
    from tests.support import preload, shard_ranks
    from vlmrl.train import dist

    assert preload is not None
    counts: Counter[str] = Counter()
    count_bytes(counts)
    dist.start()
    case = shard_ranks.CASES["alike"]
    update: dict[str, Callable[[], None]] = {name: shard_ranks.updater(folder, case, name) for name in shard_ranks.SHARDINGS}
    seconds: dict[str, list[float]] = {name: [] for name in update}
    moved: dict[str, Counter[str]] = {name: Counter() for name in update}
    for step in range(WARM_UP + steps):
        for name, run in update.items():
            dist.gather(None)
            counts.clear()
            began = time.perf_counter()
            run()
            if step >= WARM_UP:
                seconds[name].append(time.perf_counter() - began)
                moved[name].update(counts)
    if dist.is_main():
        found = {
            name: {
                "seconds": statistics.median(seconds[name]),
                "of ddp": statistics.median(seconds[name]) / statistics.median(seconds["ddp"]),
                "gathered MB": moved[name]["gathered"] / steps / 1e6,
                "summed MB": moved[name]["summed"] / steps / 1e6,
            }
            for name in update
        }
        (folder / "found.json").write_text(json.dumps(found))
    dist.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank(args.rank, args.steps)
        return
    from tests.support import shard_ranks

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shard_ranks.make_files(folder, "qwen2_5_vl")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [*launcher, __file__, "--rank", name, "--steps", str(args.steps)],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stderr=subprocess.DEVNULL,
        )
        found = json.loads((folder / "found.json").read_text())
    text = document(found, args.steps)
    print(text)
    if args.write is not None:
        args.write.write_text(text, encoding="utf-8")


def document(found: dict[str, dict[str, float]], steps: int) -> str:
    """The page."""
    from common import machine, revision

    versions = {"python": platform.python_version()} | {name: version(name) for name in ("torch", "transformers", "deepspeed")}
    columns = ("seconds", "of ddp", "gathered MB", "summed MB")
    lines = [
        "# What shards cost",
        "",
        "An update on two ranks with each training engine, in turns in one run: median seconds, their ratio to replicas (`ddp`), and",
        "the bytes that one rank gathers (weights) and sums (gradients) in it. The ranks are processes on one CPU over gloo, the model",
        "has about a million weights, so seconds say what an engine costs here; the bytes are counts that hold anywhere. Nothing here is",
        "about GPUs.",
        "",
        "| sharding | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(f"| {name} | " + " | ".join(f"{row[column]:.3g}" for column in columns) + " |" for name, row in found.items()),
        "",
        "## How it was measured",
        "",
        f"* command: `python benchmarks/shards.py --steps {steps}`, {WARM_UP} updates of each engine before, not counted",
        f"* machine: {told(machine())}",
        f"* versions: {told(versions)}; this repository at {revision()}",
        f"* load average (1 minute) at the end: {os.getloadavg()[0]:.1f}; much above two means that others were at work",
        "",
    ]
    return "\n".join(lines)


def told(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


if __name__ == "__main__":
    main()
