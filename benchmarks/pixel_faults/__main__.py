"""Asks trainers for twelve faults of pixels, and writes the table of docs/benchmarks/pixel_faults.md.

    python -m benchmarks.pixel_faults --trainers vlmrl trl
    python -m benchmarks.pixel_faults --trainers my_package.my_adapter:Mine --write runs/mine

Each fault is a job of a few rows for a tiny model on the CPU (`vlmrl.extras.pixels`); two processes for one of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import ROOT, BenchmarkError, machine, need, publish, revision, versions
from benchmarks.pixel_faults.page import lines
from vlmrl import fs
from vlmrl.extras.pixels.faults import FAULTS
from vlmrl.extras.pixels.feed import Feed
from vlmrl.extras.pixels.job import Trainer
from vlmrl.extras.pixels.judge import Judge
from vlmrl.registry import load

TRAINERS = {"vlmrl": "vlmrl.extras.pixels.own:Vlmrl", "trl": "benchmarks.pixel_faults.peer_trl:Trl"}
"""Name -> class of the adapter."""


def adapter(name: str) -> Trainer:
    """Make the adapter of a trainer, by its name or as `module:class`.

    Raises:
        BenchmarkError: there is none, or the trainer is not installed.
    """
    if name == "trl":
        need("trl", "--trainers vlmrl")
    place = TRAINERS.get(name, name)
    if ":" not in place:
        raise BenchmarkError(f"no adapter is called '{name}' (known: {', '.join(TRAINERS)}); give one of yours as MODULE:CLASS")
    return load(place)()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", nargs="+", default=["vlmrl", "trl"], help="vlmrl, trl, or MODULE:CLASS of an adapter")
    parser.add_argument("--faults", nargs="+", choices=[fault.key for fault in FAULTS], help="only these; nothing is written then")
    parser.add_argument(
        "--write", type=Path, default=ROOT / "docs/benchmarks/pixel_faults", help="results go to <write>.md and <write>.json"
    )
    args = parser.parse_args()
    found = []
    try:
        for name in args.trainers:
            trainer = adapter(name)
            with tempfile.TemporaryDirectory(prefix="asked-") as folder:
                verdicts = []
                for one in Judge(Feed(Path(folder))).verdicts(trainer, args.faults):
                    print(f"{trainer.name}: {one.fault}: {one.verdict}: {one.how}", flush=True)
                    verdicts.append(asdict(one))
            found.append({"name": trainer.name, "version": trainer.version(), "verdicts": verdicts})
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    if args.faults:
        return
    result = {"trainers": found, "machine": machine(), "versions": versions(), "revision": revision()}
    fs.mkdir(args.write.parent)
    fs.write_text(args.write.with_suffix(".json"), json.dumps(result, indent=1) + "\n")
    publish(args.write, lines(result))


if __name__ == "__main__":
    main()
