"""Which claims of papers hold on generated worlds: ten methods against their controls, judged by the plan docs/benchmarks/claims_plan.md.

    bash scripts/claims.sh [--only CLAIM ...] [--seeds N] [--jobs 2] [--list] [--quick]

Finished runs are kept by the hash of their recipe and killed ones go on, so it can be stopped at any time. Base models, fine-tuned models
and arms are shared between claims. Writes docs/benchmarks/claims.md and claims.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claims.cells import PILOTS, Cell, Plan, cells_for, groups_file, is_finished
from benchmarks.claims.measures import measures_of
from benchmarks.claims.report import (
    Costs,
    cost_cells,
    document,
    gate_plan_cells,
    pilot_page,
    plan_cells,
    power_plan_cells,
    secondary_plan_cells,
    summary_json,
    tables,
)
from benchmarks.claims.run import costs, run_cells, share_worlds
from benchmarks.claims.spec import Claim
from benchmarks.claims.table import CLAIMS
from benchmarks.common import ROOT, BenchmarkError

Measured = dict[str, dict[str, dict[int, dict[str, float]]]]
"""Regime -> arm -> seed -> measures."""


def collect(cells: Sequence[Cell], out: Path) -> Measured:
    """The measures of the arms that are finished."""
    found: Measured = {}
    for cell in cells:
        if cell.kind != "arm" or not is_finished(cell, out):
            continue
        assert cell.stage is not None
        assert cell.after is not None
        start = None if cell.after.kind == "base" else _last_records(cell.after, out)
        groups = groups_file(cell, out) if cell.records else None
        found.setdefault(cell.regime, {}).setdefault(cell.arm, {})[cell.seed] = measures_of(out / cell.name, cell.stage, start, groups)
    return found


def _last_records(start: Cell, out: Path) -> Path:
    """What a fine-tuned model answered to the held-out questions."""
    assert start.stage is not None
    return out / start.name / "eval" / f"{start.stage['name']}.jsonl"


def list_lines(claims: Sequence[Claim], cells: Sequence[Cell], out: Path) -> list[str]:
    """What would be run, and what is there."""
    lines = [f"{claim.id}: {claim.title} ({', '.join(claim.arms())})" for claim in claims]
    lines += [f"  {'done   ' if is_finished(cell, out) else 'to run '} {cell.name}" for cell in cells]
    return [*lines, f"{sum(is_finished(cell, out) for cell in cells)} of {len(cells)} runs are there"]


def write(path: Path, measured: Measured, took: Costs, command: str, *, quick: bool) -> None:
    """The page and the file of numbers."""
    from vlmrl import fs

    fs.mkdir(path.parent)
    fs.write_text(path.with_suffix(".md"), document(measured, command, quick=quick, took=took))
    numbers = json.dumps(summary_json(measured, command, quick=quick, took=took), indent=1, sort_keys=True, allow_nan=False)
    fs.write_text(path.with_suffix(".json"), numbers + "\n")


def run(args: argparse.Namespace) -> None:
    from vlmrl import fs

    claims = [CLAIMS[name] for name in args.only or CLAIMS]
    plan = Plan(seeds=args.seeds, quick=args.quick, first=PILOTS if args.pilot else 0, more=tuple(args.set))
    name = "claims-quick" if args.quick else "claims-pilot" if args.pilot else "claims"
    out = (args.out or ROOT / "runs" / name).absolute()
    # a trial of the machinery, of premises, or of other settings, must not overwrite the page of results
    own = args.quick or args.pilot or args.set
    path = args.write or (out / "claims" if own else ROOT / "docs/benchmarks/claims")
    cells = cells_for(claims, plan)
    if args.list:
        print("\n".join(list_lines(claims, cells, out)))
        return
    share_worlds(cells, out, args.machine)
    run_cells(cells, out, args.machine, lambda text: print(text, flush=True), jobs=args.jobs)
    # claims that were not asked for now are reported as far as their runs are there
    everything = cells if args.only is None else cells_for(list(CLAIMS.values()), plan)
    if args.pilot:
        page = pilot_page(collect(everything, out), costs(out, everything))
        fs.write_text(path.with_suffix(".md"), page)
        print(page)
        return
    write(path, collect(everything, out), costs(out, everything), " ".join(["bash scripts/claims.sh", *sys.argv[1:]]), quick=args.quick)
    print(path.with_suffix(".md"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="claims.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CLAIMS), metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--seeds", type=int, help="seeds of every regime; default: as the plan says")
    parser.add_argument("--list", action="store_true", help="print the runs and which of them are there, and stop")
    parser.add_argument("--tables", action="store_true", help="print the tables of the plan, with its power by simulation, and stop")
    parser.add_argument("--quick", action="store_true", help="one seed and a few steps: proves the machinery and decides nothing")
    parser.add_argument("--pilot", action="store_true", help=f"seeds from {PILOTS} on, which the plan does not have: for premises and cost")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time; each has one thread")
    parser.add_argument("--out", type=Path, help="folder of the runs; default runs/claims, runs/claims-quick or runs/claims-pilot")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every recipe, before those of regimes and arms"
    )
    parser.add_argument("--machine", nargs="*", default=["run.threads=1"], metavar="KEY=VALUE", help="overrides that change no number")
    parser.add_argument("--write", type=Path, help="results go to <write>.md and <write>.json; default docs/benchmarks/claims")
    args = parser.parse_args()
    if args.tables:
        print(tables([plan_cells(), gate_plan_cells(), secondary_plan_cells(), power_plan_cells(), cost_cells()]))
        return
    try:
        run(args)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")


if __name__ == "__main__":
    main()
