"""How the seconds and the memory of our step grow: slopes, not points.

    python -m benchmarks.step.scaling                                  all five axes around 256 visual tokens x 8 answers x 32 tokens
    python -m benchmarks.step.scaling --axes group --group 2 4 8 16    one axis

Each axis changes one number and keeps the others at the base cell. A point is one fresh process (the median of its measured steps);
a straight line is fitted to all points of an axis by least squares. Writes docs/benchmarks/scaling.md and .json.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.common import (
    BenchmarkError,
    Job,
    Line,
    Result,
    Store,
    common_settings,
    console,
    fit,
    measure,
    provenance,
    publish,
    run_all,
    run_script,
    show,
)

SIDES = ("shared_prefix", "repeat")
BASE = {"prompt": 256, "group": 8, "completion": 32, "batch": 1, "vocabulary": 0}
AXES: dict[str, list[int]] = {
    "group": [2, 4, 8, 16],
    "prompt": [64, 256, 576, 1024],
    "completion": [8, 16, 32, 64],
    "batch": [1, 2, 4],
    "vocabulary": [1024, 8192, 32768, 65536],
}
UNITS = {
    "group": "extra answer",
    "prompt": "100 prompt tokens",
    "completion": "10 tokens of all answers",
    "batch": "extra prompt",
    "vocabulary": "1,000 rows of the vocabulary",
}
PER = {"group": 1.0, "prompt": 100.0, "completion": 10.0, "batch": 1.0, "vocabulary": 1000.0}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--axes", nargs="+", choices=tuple(AXES), default=list(AXES))
    for name, default in AXES.items():
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default, help=f"values of this axis (default {default})", dest=name)
    parser.add_argument("--base", type=int, nargs=3, metavar=("PROMPT", "GROUP", "COMPLETION"), default=None, help="the base cell")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["shared_prefix"])
    parser.add_argument("--micro-tokens", type=int, default=16384, help="token budget of a micro-batch")


def worker(job: Job) -> Result:
    from benchmarks.step import ours, workload

    return workload.prepare(job) if job["side"] == "prepare" else ours.measure(job)


def base_of(args: argparse.Namespace) -> dict[str, int]:
    base = BASE | {"vocabulary": args.vocabulary_rows}
    return base if args.base is None else base | dict(zip(("prompt", "group", "completion"), args.base, strict=True))


def cells_of(args: argparse.Namespace, axis: str) -> list[dict[str, int]]:
    values = getattr(args, axis)
    if len(set(values)) < 2:
        raise BenchmarkError(f"--{axis}: a slope needs at least two different values")
    return [base_of(args) | {axis: value} for value in values]


def x_of(result: Result, axis: str) -> float:
    """Where a point lies on its axis: what was really computed, not what was asked for."""
    return float({"prompt": result["prompt_tokens"], "vocabulary": result["rows"]}.get(axis, result["cell"][axis]))


def y_of(result: Result, what: str) -> float:
    if what == "memory":
        return (result["memory"]["peak"] - result["memory"]["loaded"]) / 2**20
    return statistics.median(result[what])


def points(store: Store, cells: list[dict[str, int]], side: str) -> list[Result]:
    return [r for r in store.results.values() if r["side"] == side and r["cell"] in cells and "failed" not in r]


def slope_text(line: Line, per: float, scale: float, digits: int) -> str:
    """Slope with its 95% interval, per `per` steps along x."""
    k = per * scale
    interval = "" if line.high == float("inf") else f" [{k * line.low:.{digits}f}, {k * line.high:.{digits}f}]"
    return f"{k * line.slope:.{digits}f}{interval}"


def slopes(store: Store, args: argparse.Namespace) -> list[list[str]]:
    header = ["side", "axis", "x", "per", "step ms", "R2", "rollout ms", "update ms", "MiB", "R2", "step at the base, s"]
    rows = [header]
    for side in args.sides:
        for axis in args.axes:
            found = points(store, cells_of(args, axis), side)
            xs = [x_of(r, axis) for r in found]
            if len(set(xs)) < 2:
                rows.append([side, axis, "fewer than two points", *["-"] * 8])
                continue
            lines = {what: fit(xs, [y_of(r, what) for r in found]) for what in ("seconds", "rollout", "update", "memory")}
            seen = ", ".join(f"{x:.0f}" for x in sorted(set(xs)))
            times = [slope_text(lines[w], PER[axis], 1000, 1) for w in ("seconds", "rollout", "update")]
            at_base = [y_of(r, "seconds") for r in found if r["cell"] == base_of(args)]
            memory = slope_text(lines["memory"], PER[axis], 1, 2)
            row = [side, axis, seen, UNITS[axis], times[0], f"{lines['seconds'].r2:.3f}", *times[1:], memory, f"{lines['memory'].r2:.3f}"]
            rows.append([*row, f"{statistics.median(at_base):.2f}" if at_base else "-"])
    return rows


def main(args: argparse.Namespace) -> None:
    settings = common_settings(args) | {"max_tokens_per_microbatch": args.micro_tokens}
    store = Store.open(args.write.with_suffix(".json"), settings)
    cells: list[dict[str, int]] = []
    for axis in args.axes:
        cells += [cell for cell in cells_of(args, axis) if cell not in cells]
    steps = args.warmup + args.steps
    media = sorted({("image", c["prompt"], steps * c["batch"]) for c in cells})
    files: dict[str, Any] = {"vocabularies": sorted({c["vocabulary"] for c in cells}), "media": media}
    measure(__file__, {"side": "prepare", "cell": files, "settings": settings}, timeout=args.timeout)
    run_all(__file__, store, cells, args.sides, args.repeats, timeout=args.timeout, say=console().print, rounds=True)
    publish(args.write, document(store, args))


def document(store: Store, args: argparse.Namespace) -> list[str]:
    base = base_of(args)
    shown = ", ".join(f"{name} {value or 'own'}" for name, value in base.items())
    return [
        "# How our step grows",
        "",
        f"Base cell: {shown}. `prompt` is the visual tokens of the picture, `batch` prompts per step.",
        "Each axis changes one number. Slopes are least squares over all processes, with 95% intervals; `x` is what was really computed.",
        "",
        show("Slopes", slopes(store, args)),
        "A slope of the step contains whatever grows: the answers' own tokens, and the kernels' efficiency at that size. `MiB` is the peak",
        "above the loaded model, optimizer state included.",
        "",
        *provenance(store),
    ]


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)
