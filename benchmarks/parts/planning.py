"""What planning a step costs: milliseconds per plan of the samplers that weigh rows, by rows in the data and rows seen so far.

    python -m benchmarks.parts.planning --write docs/benchmarks/planning.md

Beside each time stands that of the same plan made row by row over all rows (`tests/support/plain_samplers.py`, which the tests compare
plan by plan): what it costs to look at everything in every step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import how_measured, module_of
from tests.support.plain_samplers import PlainPrioritized, PlainVade, PlainVas
from vlmrl import fs, rng
from vlmrl.methods import registries
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger

PLAIN = {"vade": PlainVade, "prioritized": PlainPrioritized, "vas": PlainVas}
PROMPTS, GENERATIONS = 16, 8


def seen_ledger(names: Sequence[str], seen: int) -> Ledger:
    """A ledger in which the first `seen` samples have had one group, `PROMPTS` in each step."""
    ledger = Ledger()
    for place, name in enumerate(names[:seen]):
        rewards = [float(rng.uniform(0, place, k) < 0.4) for k in range(GENERATIONS)]
        ledger.observe(name, rewards=rewards, lengths=[5] * GENERATIONS, step=place // PROMPTS, diversity=rng.uniform(1, place))
    return ledger


def per_plan(plan: Callable[[Ledger], Sequence[str]], ledger: Ledger, first: int, steps: int) -> float:
    """Median milliseconds of a plan while a run goes on: each planned sample gets a group before the next plan."""
    plan(ledger)  # the first one reads the whole ledger, once in a process
    out: list[float] = []
    for step in range(first, first + steps):
        began = time.perf_counter()
        names = plan(ledger)
        out.append(1000 * (time.perf_counter() - began))
        for name in names:
            ledger.observe(name, rewards=[1.0, 0.0] * (GENERATIONS // 2), lengths=[5] * GENERATIONS, step=step, diversity=0.5)
    return statistics.median(out)


def drawing(rows: int, steps: int) -> float:
    """Median milliseconds of numpy for one Beta number per row: `vade` cannot plan without."""
    ones, out = np.ones(rows), list[float]()
    for step in range(steps):
        began = time.perf_counter()
        rng.generator(0, "vade", step).beta(ones, ones)
        out.append(1000 * (time.perf_counter() - began))
    return statistics.median(out)


def measure(name: str, rows: int, seen: int, steps: int) -> tuple[float, float, float]:
    """(now, drawing the numbers alone, row by row) in milliseconds."""
    names = [f"sample-{i:07d}" for i in range(rows)]
    first = seen // PROMPTS + 1
    ours, plain = sampler.bind(name)(names, 0), PLAIN[name](names, 0)

    def planned(ledger: Ledger) -> list[str]:
        return [one.sample_id for one in ours.plan(ledger, prompts=PROMPTS, rollouts=GENERATIONS)]

    now = per_plan(planned, seen_ledger(names, seen), first, steps)
    alone = drawing(rows, steps) if name == "vade" else 0.0
    return now, alone, per_plan(lambda ledger: plain.plan(ledger, PROMPTS), seen_ledger(names, seen), first, max(5, steps // 5))


def page(lines: Sequence[str], command: str) -> str:
    """The Markdown page."""
    busy = (
        f"load average {os.getloadavg()[0]:.1f} at the end: other programs ran beside it, and a plan's times are as slow as that makes them"
    )
    return "\n".join(
        [
            "# Planning a step",
            "",
            f"Milliseconds per plan of {PROMPTS} prompts, median, while each planned sample gets {GENERATIONS} rewards before the next.",
            "`row by row`: the same plans (the tests compare them), from a look at every row in every step. `the draw alone`: `vade` draws",
            "a Beta number for each row, which decides the plan; that is what is left of its time.",
            "",
            "| sampler | rows | of them seen | ms per plan | the draw alone | row by row | ratio |",
            "|---|---:|---:|---:|---:|---:|---:|",
            *lines,
            "",
            *how_measured(command, *([busy] if os.getloadavg()[0] > 1.5 else []), libraries=("numpy",)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--steps", type=int, default=40, help="plans that are timed")
    parser.add_argument("--write", type=Path, help="Markdown file")
    given = parser.parse_args()
    registries()
    lines: list[str] = []
    for name in PLAIN:
        for rows in given.rows:
            for seen in (0, rows // 2, rows):
                now, alone, before = measure(name, rows, seen, given.steps)
                drawn = f"{alone:.1f}" if alone else ""
                lines.append(f"| `{name}` | {rows:,} | {seen:,} | {now:.1f} | {drawn} | {before:.1f} | {before / now:.0f}x |")
                print(lines[-1], flush=True)
    if given.write:
        fs.write_text(given.write, page(lines, f"python -m {module_of(__file__)} {' '.join(sys.argv[1:])}"))


if __name__ == "__main__":
    main()
