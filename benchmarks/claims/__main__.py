"""Which claims of papers hold on generated worlds: eight methods against their controls, judged by the plan docs/benchmarks/claims_plan.md.

    bash scripts/claims.sh [--only CLAIM ...] [--seeds N] [--jobs 2] [--list] [--quick]

Each regime is a study (`vlmrl.extras.study`): finished runs stay and killed ones go on, so it can be stopped at any time. Base models,
fine-tuned models and arms are shared between claims. Writes docs/benchmarks/claims.md and claims.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claims.regimes import REGIMES
from benchmarks.claims.report import (
    Costs,
    cost_cells,
    document,
    pilot_page,
    plan_cells,
    power_plan_cells,
    premise_plan_cells,
    secondary_plan_cells,
    summary_json,
    tables,
)
from benchmarks.claims.spec import Claim
from benchmarks.claims.studies import PILOTS, Scale, share_worlds, study_of, wanted
from benchmarks.claims.table import CLAIMS
from benchmarks.common import ROOT, BenchmarkError
from vlmrl.errors import VlmrlError
from vlmrl.extras.study.conduct import Conductor
from vlmrl.extras.study.measures import measured
from vlmrl.extras.study.plan import Run
from vlmrl.extras.study.runs import run_all, with_needs

Measured = dict[str, dict[str, dict[int, dict[str, float]]]]
"""Regime -> arm -> seed -> measures."""


def collect(conductors: Sequence[Conductor]) -> Measured:
    """The measures of the arms that are finished."""
    found: Measured = {}
    for one in conductors:
        for run in one.looks[-1].runs:
            if run.done:
                values = measured(run.folder, one.own).values
                found.setdefault(one.study.name, {}).setdefault(run.arm, {})[run.seed] = values
    return found


def costs_of(conductors: Sequence[Conductor]) -> Costs:
    """Regime -> kind -> seconds of the processor of the runs that were done in one go."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in conductors:
        for line in one.costs():
            kind = "base" if line["kind"] == "prepare" else line["kind"]
            found.setdefault(one.study.name, {}).setdefault(kind, []).append(line["cpu"])
    return found


def list_lines(claims: Sequence[Claim], runs: Sequence[Run]) -> list[str]:
    """What would be run, and what is there."""
    lines = [f"{claim.id}: {claim.title} ({', '.join(claim.arms())})" for claim in claims]
    lines += [f"  {'done   ' if run.done else 'to run '} {run.kind} {run.name}" for run in runs]
    return [*lines, f"{sum(run.done for run in runs)} of {len(runs)} runs are there"]


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
    scale = Scale(seeds=args.seeds, quick=args.quick, first=PILOTS if args.pilot else 0, more=tuple(args.set))
    name = "claims-quick" if args.quick else "claims-pilot" if args.pilot else "claims"
    out = (args.out or ROOT / "runs" / name).absolute()
    # a trial of the machinery, of premises, or of other settings, must not overwrite the page of results
    own = args.quick or args.pilot or args.set
    path = args.write or (out / "claims" if own else ROOT / "docs/benchmarks/claims")
    # the plan of a regime has all of its seeds, however many are run now
    whole = scale if own else Scale()
    all_of = {
        name: Conductor(study_of(regime, CLAIMS.values(), whole, args.machine), out / name)
        for name, regime in REGIMES.items()
        if args.only is None or any(claim.regime == name for claim in claims)
    }
    runs = {
        name: with_needs([run for run in wanted(one, claims) if run.seed in scale.seeds_of(REGIMES[name])]) for name, one in all_of.items()
    }
    if args.list:
        print("\n".join(list_lines(claims, [run for of in runs.values() for run in of])))
        return
    failed = []
    for name, one in all_of.items():
        one.fix()
        share_worlds(one, out / "worlds")
        failed += run_all(runs[name], one.out, lambda text: print(text, flush=True), jobs=args.jobs)
    if failed:
        raise BenchmarkError("\n".join(map(str, failed)) + "\nthe same command goes on from there")
    conductors = list(all_of.values())
    if args.pilot:
        page = pilot_page(collect(conductors), costs_of(conductors))
        fs.write_text(path.with_suffix(".md"), page)
        print(page)
        return
    write(path, collect(conductors), costs_of(conductors), " ".join(["bash scripts/claims.sh", *sys.argv[1:]]), quick=args.quick)
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
        print(tables([plan_cells(), premise_plan_cells(), secondary_plan_cells(), power_plan_cells(), cost_cells()]))
        return
    try:
        run(args)
    except (BenchmarkError, VlmrlError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
