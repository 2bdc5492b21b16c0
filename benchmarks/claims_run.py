"""Runs the cells of the claims benchmark: what is finished is kept, what was killed goes on, some at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from benchmarks.claims_cells import Cell, arguments_of, groups_file, is_finished
from benchmarks.claims_recorder import FILE
from benchmarks.common import ROOT, BenchmarkError

Execute = Callable[[Sequence[str], Path, Mapping[str, str]], None]
"""(arguments of `vlmrl`, log file, environment beside this process's own): run it, or raise BenchmarkError."""


def execute(arguments: Sequence[str], log: Path, more: Mapping[str, str]) -> None:
    """Run `vlmrl` in a process of its own.

    Raises:
        BenchmarkError: it failed, with the end of what it printed.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **more}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        command = [sys.executable, "-m", "vlmrl", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file, check=False)
    if done.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise BenchmarkError(f"vlmrl {' '.join(arguments[:2])} ended with {done.returncode} (all of it in {log}):\n{tail}")


def share_worlds(cells: Sequence[Cell], out: Path, machine: Sequence[str]) -> None:
    """Make each world once, and link it into the caches of all seeds."""
    from vlmrl.config.load import load
    from vlmrl.toy.kinds import make_world, world_hash

    for cell in cells:
        if cell.kind != "base":
            continue
        toy = load(Path(cell.recipe), [*cell.settings, *machine]).config.toy
        assert toy is not None
        name = f"world-{world_hash(toy.world)}"
        make_world(out / "worlds" / name, toy.world)
        link = out / cell.cache / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(out / "worlds" / name)


def run_cells(
    cells: Sequence[Cell], out: Path, machine: Sequence[str], say: Callable[[str], None], *, jobs: int = 1, execute: Execute = execute
) -> None:
    """Run what is not finished, `jobs` at a time and each after what it starts from, otherwise in order.

    Raises:
        BenchmarkError: a run failed or ended early. Runs that are under way are waited for, later ones are not begun; the same command goes
            on from there.
    """
    waiting = [cell for cell in cells if not is_finished(cell, out)]
    total, begun = len(waiting), 0
    under_way: dict[Future[None], Cell] = {}
    failed: BenchmarkError | None = None
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        while under_way or (waiting and failed is None):
            ready = [cell for cell in waiting if cell.after is None or is_finished(cell.after, out)]
            if not ready and not under_way:
                raise BenchmarkError(f"{waiting[0].name} starts from a run that is not among those asked for: {waiting[0].after}")
            for cell in ready[: max(0, jobs - len(under_way))] if failed is None else []:
                begun += 1
                say(f"[{begun}/{total}] {cell.name}")
                waiting.remove(cell)
                under_way[pool.submit(_one, cell, out, machine, execute)] = cell
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                del under_way[future]
                error = future.exception()
                if isinstance(error, BenchmarkError):
                    failed = failed or error
                elif error is not None:
                    raise error
    if failed is not None:
        raise failed


def _one(cell: Cell, out: Path, machine: Sequence[str], execute: Execute) -> None:
    from vlmrl import fs

    log = out / f"{cell.name}.log"
    execute(arguments_of(cell, out, machine), log, {FILE: str(groups_file(cell, out))} if cell.records else {})
    if cell.kind == "base":
        # the trainer marks its own runs; that a base model is there is marked here
        fs.mkdir(out / cell.name)
        fs.write_text(out / cell.name / "FINISHED", "")
    if not is_finished(cell, out):
        raise BenchmarkError(f"{cell.name} ended without finishing; see {log}; the same command goes on from there")
