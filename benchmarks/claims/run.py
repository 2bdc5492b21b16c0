"""Runs the cells of the claims benchmark: what is finished is kept, what was killed goes on, some at a time."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from benchmarks.claims.cells import Cell, arguments_of, groups_file, is_finished
from benchmarks.claims.process import Cost, execute, stop_all
from benchmarks.claims.recorder import FILE
from benchmarks.common import BenchmarkError

Execute = Callable[[Sequence[str], Path, Mapping[str, str]], Cost]
"""(arguments of `vlmrl`, log file, environment beside this process's own): run it, or raise BenchmarkError."""
COSTS = "costs.jsonl"
"""File of what each run took."""


def share_worlds(cells: Sequence[Cell], out: Path, machine: Sequence[str]) -> None:
    """Make each world once, and link it into the caches of all seeds."""
    from vlmrl.config.load import load
    from vlmrl.extras.toy.kinds import make_world, world_hash

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
    with ThreadPoolExecutor(max_workers=jobs) as pool, _stopping():
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
    goes_on = log.exists()
    cost = execute(arguments_of(cell, out, machine), log, {FILE: str(groups_file(cell, out))} if cell.records else {})
    if cell.kind == "base":
        # the trainer marks its own runs; that a base model is there is marked here
        fs.mkdir(out / cell.name)
        fs.write_text(out / cell.name / "FINISHED", "")
    if not is_finished(cell, out):
        raise BenchmarkError(f"{cell.name} ended without finishing; see {log}; the same command goes on from there")
    took = {"cell": cell.name, "regime": cell.regime, "kind": cell.kind, "cpu": round(cost.cpu, 2), "wall": round(cost.wall, 2)}
    if not goes_on:  # of a run in several parts this is only the last
        fs.append(out / COSTS, json.dumps(took).encode() + b"\n")


@contextmanager
def _stopping() -> Iterator[None]:
    """A block in which an error that ends this process, or the signal that asks it to end, stops what is under way too."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except BaseException:
        stop_all()
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def costs(out: Path, cells: Sequence[Cell]) -> dict[str, dict[str, list[float]]]:
    """Regime -> kind -> seconds of the processor of the runs among `cells` that were done in one go."""
    path = out / COSTS
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    names = {cell.name for cell in cells}
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        if line["cell"] in names:
            found.setdefault(line["regime"], {}).setdefault(line["kind"], []).append(line["cpu"])
    return found
