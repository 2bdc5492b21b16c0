"""What keeping groups for `vlmrl view` costs in wall time: the same steps with and without, in many alternating pairs of runs.

    python -m benchmarks.parts.view_pairs [--pairs 12] [--steps 40] [--write PAGE]      on a machine that does nothing else

Whole runs of the tiny model, each in a process of its own, in turn and back again. Those of a pair compute the same bits (checked), so
step i of one is the same work as step i of the other, and what differs is the keeping and the machine. Of each step the median over the
pairs is taken, with and without; the cost is the ratio of their sums less 1, its 95% interval is of pairs drawn anew (bootstrap). The
first two steps of a run, which import and allocate, do not count. A second row does the same with runs that both keep nothing: what this
machine makes of no difference at all. An interval wider than the bound in question says that more pairs are needed, or a quieter machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WARM = 2
"""Steps of a run that do not count."""
DRAWS = 2000
SIDES = {"keeps 8 groups a step": 8, "keeps nothing": 0, "keeps nothing, again": 0}


def cost(on_PS: np.ndarray, off_PS: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """(share, low, high): how much longer the steps take on one side than on the other, with its 95% interval.

    Args:
        on_PS, off_PS: seconds of each step, [pairs, steps]; the same pair and step of both is the same work.

    Raises:
        ValueError: another shape on one side than on the other, or fewer than two pairs.
    """
    if on_PS.shape != off_PS.shape or on_PS.ndim != 2 or len(on_PS) < 2:
        raise ValueError(f"expected two tables of the same pairs and steps, got {list(on_PS.shape)} and {list(off_PS.shape)}")

    def share(pairs: Any) -> float:
        return float(np.median(on_PS[pairs], axis=0).sum() / np.median(off_PS[pairs], axis=0).sum()) - 1

    draws = np.random.default_rng(seed).integers(0, len(on_PS), size=(DRAWS, len(on_PS)))
    low, high = np.quantile([share(one) for one in draws], [0.025, 0.975])
    return share(slice(None)), float(low), float(high)


def measure(files: tuple[Path, Path], root: Path, groups: int, steps: int) -> tuple[list[float], str]:
    """Seconds of every step of a run, and the digest of its final weights."""
    from tests.support import ahead, runs
    from vlmrl.run.tracking import read_metrics

    made = ahead.config(files, root, 0, steps=steps)
    made["stages"][0]["rollout"] |= {"num_generations": 8, "max_new_tokens": 48}
    made |= {"keep": {"groups_per_step": groups}, "checkpoint": {"every": steps}}
    if ahead.run(made, timeout=3600) != 0:
        raise SystemExit(f"a run failed: see {root}")
    lines = [line for line in read_metrics(runs.run_dir(made) / "metrics.jsonl") if "grad_norm" in line]
    return [float(line["time/step_total"]) for line in lines], str(runs.outcome(made)["weights"])


def page(found: dict[str, list[list[float]]], load: Sequence[float]) -> str:
    """The results as Markdown."""
    tables = {name: np.array(rows)[:, WARM:] for name, rows in found.items()}
    with_groups, without, again = (tables[name] for name in SIDES)
    pairs, steps = without.shape
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    lines = [
        "# Keeping groups: wall time",
        "",
        f"`python -m benchmarks.parts.view_pairs --pairs {pairs} --steps {steps + WARM}` on {machine}.",
        f"{pairs} alternating pairs, {steps} steps each; the runs of a pair end with the same weights.",
        f"Load of the machine {load[0]:.1f} at the start and {load[-1]:.1f} at the end, this benchmark included.",
        "",
        "| | s/step, median | longer than without | 95% |",
        "|---|---:|---:|---:|",
    ]
    for name, table in (("keeps 8 groups a step", with_groups), ("keeps nothing, again (no difference)", again)):
        share, low, high = cost(table, without)
        lines.append(f"| {name} | {np.median(table):.4f} | {100 * share:+.2f} % | [{100 * low:+.2f}, {100 * high:+.2f}] |")
    lines += [
        "",
        "The second row compares nothing with nothing: a cost that its interval would hold cannot be told from none on this machine.",
    ]
    lines += ["Processor time can tell smaller ones: [view.md](view.md)."]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--write", type=Path, help="file for the page, beside printing it")
    given = parser.parse_args()
    from tests.support import tiny

    found: dict[str, list[list[float]]] = {name: [] for name in SIDES}
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        files = tiny.make_files(Path(folder))
        for pair in range(given.pairs):
            order = list(SIDES) if pair % 2 == 0 else list(SIDES)[::-1]
            digests: set[str] = set()
            for name in order:
                seconds, digest = measure(files, Path(folder, f"{pair}-{list(SIDES).index(name)}"), SIDES[name], given.steps)
                digests.add(digest)
                found[name].append(seconds)
                print(f"pair {pair + 1}: {name}: {np.median(seconds[WARM:]):.4f} s per step", flush=True)
            if len(digests) != 1:
                raise SystemExit("keeping groups changes bits")
            load.append(os.getloadavg()[0])
    text = page(found, load)
    print(text)
    if given.write is not None:
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
