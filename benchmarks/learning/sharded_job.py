"""The main job with its weights in shards over two ranks, killed three times on the way, beside the main job in one process.

    python -m benchmarks.learning.sharded_job --into DIR [--sharding fsdp zero3] [--recipe toy_video] [KEY=VALUE ...]

Every run goes through `scripts/train_video.sh`. A killed run loses all its processes in its first stage and in its last one (`kill -9`),
and is started again with the same line; between them one rank alone is killed, and the launcher starts all of them again. What is compared:
the tables of every stage, how many of its answers are the same text, and loss and gradient norm of the first steps, before rounding has
chosen another token. A finished run in DIR is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ROOT, BenchmarkError
from vlmrl.evals.score.levels import level_table
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.runfiles import read_run
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import level_cells, summary_cells
from vlmrl.run.tracking import read_metrics

FINISHED = "FINISHED"
PATIENCE = 3600.0
"""Seconds until a run that does not come to its next kill is given up."""
EARLY = 10
"""Steps whose losses are compared."""


def updates(run: Path) -> list[Mapping[str, Any]]:
    path = run / "metrics.jsonl"
    return [line for line in read_metrics(path) if "grad_norm" in line] if path.exists() else []


def command(recipe: str, into: Path, name: str, more: Sequence[str]) -> list[str]:
    return ["bash", str(ROOT / "scripts" / "train_video.sh"), recipe, f"run.root={into}", f"run.name={name}", *more]


def start(line: Sequence[str], log: Path) -> psutil.Popen:
    with log.open("a") as file:
        return psutil.Popen(list(line), stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)


def finish(line: Sequence[str], log: Path) -> None:
    if start(line, log).wait() != 0:
        raise BenchmarkError(f"the run ended with an error; see {log}")


def ranks_of(process: psutil.Popen) -> list[psutil.Process]:
    """The processes that train, below a launcher."""
    below = process.children(recursive=True)
    return [one for one in below if "vlmrl" in one.cmdline() and "train" in one.cmdline() and "torch.distributed.run" not in one.cmdline()]


def wait_for(process: psutil.Popen, run: Path, log: Path, steps: int) -> int:
    """Wait until a run has logged so many updates; how many it has."""
    end = time.monotonic() + PATIENCE
    while (done := len(updates(run))) < steps:
        if process.poll() is not None or time.monotonic() > end:
            raise BenchmarkError(f"the run did not come to step {steps}; see {log}")
        time.sleep(0.2)
    return done


def kill_all(process: psutil.Popen) -> None:
    for one in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def killed_run(line: Sequence[str], run: Path, log: Path, steps: Sequence[int]) -> list[int]:
    """A run to its end through three kills; the updates that were logged when each of them came."""
    process = start(line, log)
    seen = [wait_for(process, run, log, steps[0])]
    kill_all(process)
    process = start(line, log)
    seen.append(wait_for(process, run, log, steps[1]))
    ranks_of(process)[-1].kill()
    seen.append(wait_for(process, run, log, steps[2]))
    kill_all(process)
    finish(line, log)
    return seen


def show(run: Path) -> dict[str, list[Record]]:
    files = read_run(run)
    records = {name: list(rows) for name, rows in files.records.items() if rows}
    levels = level_table(records, 0)
    cells = summary_cells({name: summarize(rows, 0) for name, rows in records.items()}, None) if levels is None else level_cells(levels)
    for row in cells:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    return records


def compare(run: Path, other: Path) -> None:
    """Print what differs between the run of one process and another."""
    a, b = (read_run(path).records for path in (run, other))
    for name in a:
        mine, theirs = ({record.sample_id: record for record in rows[name]} for rows in (a, b))
        same = sum(mine[key].text == theirs[key].text for key in mine)
        print(f"{name}: {same} of {len(mine)} answers are the same text; {len(mine) - len(mine.keys() & theirs.keys())} not asked")
    for key in ("loss", "grad_norm"):
        pairs = list(zip(updates(run)[:EARLY], updates(other)[:EARLY], strict=True))
        worst = max(abs(float(x[key]) - float(y[key])) / abs(float(x[key])) for x, y in pairs)
        print(f"{key} of the first {EARLY} updates: at most {worst:.1e} of its size apart")
    print(f"updates: {len(updates(run))} and {len(updates(other))}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--sharding", nargs="+", default=["fsdp", "zero3"])
    parser.add_argument("--recipe", default="toy_video")
    parser.add_argument("--kill-at", type=int, nargs=3, default=[50, 135, 170], help="updates after which it is killed")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    into: Path = args.into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    one = into / "one"
    if not (one / FINISHED).exists():
        finish(command(args.recipe, into, "one", args.overrides), into / "one.log")
    print("one process")
    show(one)
    for sharding in args.sharding:
        run = into / sharding
        if not (run / FINISHED).exists():
            began = time.monotonic()
            line = command(args.recipe, into, sharding, ["--gpus", "2", f"train.sharding={sharding}", *args.overrides])
            seen = killed_run(line, run, into / f"{sharding}.log", args.kill_at)
            print(f"\n{sharding}: killed after {', '.join(map(str, seen))} updates; all of it took {time.monotonic() - began:.0f} s")
        show(run)
        compare(one, run)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
