"""Which claims of papers hold on the toy world: each method against plain GRPO and its other comparators, with equal rollouts.

    bash scripts/claims.sh [--only CLAIM ...] [--seeds 0 1 2 3 4] [--jobs 2] [--plan]

Finished runs are kept by the hash of their recipe, so it can be stopped and goes on. Writes docs/benchmarks/claims.md and claims.json.
The toy world shows what a method does to a model of a million weights in a minute; it says nothing about benchmarks of real images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.claims_cells import CLAIMS, Cell, Claim, Measures, cells_of  # noqa: E402
from benchmarks.claims_report import document, summary_json  # noqa: E402
from benchmarks.claims_stats import curve_of, measures_of, with_curve  # noqa: E402
from benchmarks.common import BenchmarkError  # noqa: E402

RECIPES = ROOT / "configs" / "recipes"
Execute = Callable[[Sequence[str], Path], None]
"""(arguments of `vlmrl`, log file): run it, or raise BenchmarkError."""


def is_finished(cell: Cell, out: Path) -> bool:
    return (out / cell.name / "FINISHED").exists()


def arguments_of(cell: Cell, out: Path, extra: Sequence[str]) -> list[str]:
    """The command of a cell, without the interpreter."""
    places = [f"run.name={cell.name}", f"run.root={out}", "run.trackers=[]"]
    start = [] if cell.parent is None else [f"model.path={out / cell.parent.name / 'final'}"]
    return ["train", cell.recipe, *cell.overrides, *places, *start, *extra]


def run_cells(
    cells: Sequence[Cell], out: Path, execute: Execute, extra: Sequence[str], say: Callable[[str], None], *, jobs: int = 1
) -> None:
    """Run what is not finished, parents before children, `jobs` at a time; what an earlier command finished is kept.

    Raises:
        BenchmarkError: a run failed or ended early. Runs that are under way are waited for, later ones are not begun.
    """
    missing = [cell for cell in cells if not is_finished(cell, out)]

    def one(cell: Cell) -> None:
        say(f"[{missing.index(cell) + 1}/{len(missing)}] {cell.name}")
        execute(arguments_of(cell, out, extra), out / f"{cell.name}.log")
        if not is_finished(cell, out):
            log = out / f"{cell.name}.log"
            raise BenchmarkError(f"{cell.name} ended without finishing; see {log}; the same command goes on from there")

    for wave in ([c for c in missing if c.parent is None], [c for c in missing if c.parent is not None]):
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            waiting = [pool.submit(one, cell) for cell in wave]
            try:
                for future in waiting:
                    future.result()
            except BenchmarkError:
                pool.shutdown(cancel_futures=True)
                raise


def execute(arguments: Sequence[str], log: Path) -> None:
    """Run `vlmrl` in a process of its own.

    Raises:
        BenchmarkError: it failed, with the end of what it printed.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    log.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "vlmrl.cli", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise BenchmarkError(f"vlmrl {' '.join(arguments[:2])} ended with {done.returncode} (all of it in {log}):\n{tail}")


def collect(claim: Claim, cells: Sequence[Cell], out: Path) -> dict[str, dict[int, Measures]]:
    """Arm -> seed -> measures, of the cells that are finished."""
    found: dict[str, dict[int, Measures]] = {}
    for arm in claim.arms:
        for seed in sorted({cell.seed for cell in cells}):
            own = [cell for cell in cells if (cell.arm, cell.seed) == (arm, seed)]
            if not own or not all(is_finished(cell, out) for cell in own):
                continue
            measures = measures_of(out / own[0].name)
            if claim.target is not None:
                measures |= with_curve(claim, curve_of(out / own[0].name, claim.target[0], _last_stage(own[0])))
            found.setdefault(arm, {})[seed] = measures
    return found


def _last_stage(cell: Cell) -> dict[str, Any]:
    stages = next(o for o in cell.overrides if o.startswith("stages="))
    return json.loads(stages.removeprefix("stages="))[-1]


def parents_of(cells: Sequence[Cell], out: Path) -> dict[int, Measures]:
    """Seed -> measures of the model that the arms start from, where there is one."""
    return {cell.seed: measures_of(out / cell.name) for cell in cells if cell.arm == "sft" and is_finished(cell, out)}


def best_constant(cell: Cell, out: Path, extra: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Task -> the constant-answer baseline: the best constant among the answers that occur in the held-out rows, and its mean score.

    Empty where the world is not there yet.
    """
    from vlmrl.answers.base import ANSWER_TYPES
    from vlmrl.config.load import load
    from vlmrl.data.source import load_source
    from vlmrl.toy.base import world_folder

    config = load(Path(cell.recipe), [*cell.overrides, *extra]).config
    assert config.toy is not None
    assert config.eval.source is not None
    folder, _ = world_folder(config.toy.world, Path(config.toy.cache).expanduser(), [config.eval.source.path])
    if not folder.exists():
        return {}
    rows_file, bad = folder / config.eval.source.path, out / "quarantine.jsonl"
    samples = load_source(rows_file, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=bad)[: config.eval.limit]
    best: dict[str, tuple[str, float]] = {}
    for task in sorted({sample.task for sample in samples}):
        rows = [sample for sample in samples if sample.task == task]
        kind = ANSWER_TYPES[rows[0].answer_type]
        means = {answer: sum(kind.score(answer, row)[2][kind.main] for row in rows) / len(rows) for answer in {row.answer for row in rows}}
        answer = max(sorted(means), key=lambda answer: means[answer])
        best[task] = answer, means[answer]
    return best


def plan_lines(claims: Sequence[Claim], cells: Mapping[str, Sequence[Cell]], out: Path) -> list[str]:
    """What would be run, and what is there."""
    lines: list[str] = []
    for claim in claims:
        lines.append(f"{claim.id}: {claim.title}")
        lines += [f"  {'done   ' if is_finished(cell, out) else 'to run '} {cell.name}" for cell in cells[claim.id]]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CLAIMS), default=list(CLAIMS), metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--plan", action="store_true", help="print the runs and which of them are there, and stop")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each has one thread")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/claims", help="folder of the runs")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of every recipe, before the changes of an arm")
    parser.add_argument("--machine", nargs="*", default=["run.threads=1"], metavar="KEY=VALUE", help="overrides that change no number")
    parser.add_argument("--write", type=Path, default=ROOT / "docs/benchmarks/claims", help="results go to <write>.md and <write>.json")
    args = parser.parse_args()
    try:
        run(args)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")


def run(args: argparse.Namespace) -> None:
    from vlmrl import fs

    claims, out = [CLAIMS[name] for name in args.only], args.out.absolute()
    cells = {claim.id: cells_of(claim, args.seeds, RECIPES, args.set) for claim in claims}
    if args.plan:
        print("\n".join(plan_lines(claims, cells, out)))
        return
    for claim in claims:
        run_cells(cells[claim.id], out, execute, args.machine, lambda text: print(text, flush=True), jobs=args.jobs)
    # claims that were not asked for now are reported as far as their runs are there
    everyone = {claim.id: cells.get(claim.id) or cells_of(claim, args.seeds, RECIPES, args.set) for claim in CLAIMS.values()}
    results: dict[str, dict[str, Any]] = {}
    for claim in CLAIMS.values():
        measured = collect(claim, everyone[claim.id], out)
        if measured:
            constant = best_constant(everyone[claim.id][-1], out, args.machine)
            results[claim.id] = {"measured": measured, "before": parents_of(everyone[claim.id], out), "constant": constant}
    fs.mkdir(args.write.parent)
    shown = " ".join(["bash scripts/claims.sh", *sys.argv[1:]])
    fs.write_text(args.write.with_suffix(".md"), document(results, shown, args.seeds))
    fs.write_text(args.write.with_suffix(".json"), json.dumps(summary_json(results, shown, args.seeds), indent=1, sort_keys=True) + "\n")
    print(args.write.with_suffix(".md"))


if __name__ == "__main__":
    main()
