"""What RL adds on the toy world, over seeds, beside two controls of equal budget.

    python -m benchmarks.learning.toy_grounding --out runs/bench --seeds 0 1 2

For each seed: the recipe `configs/recipes/toy_grounding.yaml` (base -> SFT -> G2RPO with a ground-truth row); then, from the same SFT
weights, plain GRPO, and more SFT on the rows that RL trains on (their exact answers; RL's number of steps and of sequences per
step). Finished runs are kept, so it can be stopped and goes on. Writes docs/benchmarks/toy_grounding.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, how_measured, percentile_interval

SLOTS = threading.Semaphore(2)
"""Runs at a time."""
RECIPE = ROOT / "configs/recipes/toy_grounding.yaml"


def command(seed: int, out: Path, name: str, extra: list[str]) -> list[str]:
    settings = [f"run.seed={seed}", f"run.name={name}", f"run.root={out}", "run.trackers=[]"]
    return [sys.executable, "-m", "vlmrl.cli", "train", str(RECIPE), *settings, *extra]


def run_seed(seed: int, out: Path, pool: ThreadPoolExecutor, extra: list[str]) -> None:
    """The main run of a seed, then its two controls (which may run side by side)."""
    from vlmrl.config.load import load

    main = out / f"main-{seed}"
    _run(command(seed, out, main.name, extra), main)
    recipe = load(RECIPE, []).config.model_dump(mode="json")
    start = [*extra, f"model.path={main / 'stages' / 'sft'}", "eval.at_start=false"]
    waiting = []
    for name, stage in (("grpo", plain_grpo(recipe)), ("sft", continued_sft(recipe))):
        folder = out / f"{name}-{seed}"
        waiting.append(pool.submit(_run, command(seed, out, folder.name, [*start, stage]), folder))
    for one in waiting:
        one.result()


def continued_sft(recipe: dict[str, Any]) -> str:
    """The control stage: as many steps and sequences as the RL stage, on the same rows."""
    rl, sft = recipe["stages"][1], recipe["stages"][0]
    rollout = rl["rollout"]
    stage = {
        "name": "control",
        "kind": "sft",
        "source": rl["source"],
        "steps": rl["steps"],
        "batch": rollout["prompts"] * rollout["num_generations"],
        "answer_format": rl["answer_format"],
        "freeze": rl["freeze"],
        "optim": sft["optim"],
    }
    return f"stages=[{json.dumps(stage)}]"


def plain_grpo(recipe: dict[str, Any]) -> str:
    """The RL stage with GRPO's advantage and without the ground-truth row."""
    stage = json.loads(json.dumps(recipe["stages"][1]))
    stage |= {"name": "control", "advantage": {"name": "grpo"}}
    stage["rollout"]["strategy"] = {"name": "plain"}
    return f"stages=[{json.dumps(stage)}]"


def records_of(seed: int, out: Path) -> dict[str, Path]:
    """Name -> records of the held-out questions."""
    main = out / f"main-{seed}"
    return {
        "base": main / "eval/base.jsonl",
        "SFT": main / "eval/sft.jsonl",
        "G2RPO + ground-truth row": main / "eval/rl.jsonl",
        "plain GRPO": out / f"grpo-{seed}" / "eval/control.jsonl",
        "more SFT on the same rows": out / f"sft-{seed}" / "eval/control.jsonl",
    }


def _run(arguments: list[str], folder: Path) -> None:
    if (folder / "FINISHED").exists():
        return
    print(f"{folder.name}: running", flush=True)
    with SLOTS:
        subprocess.run(arguments, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)


def document(cells: dict[int, dict[str, Path]], arguments: str) -> str:
    """The tables as Markdown."""

    from vlmrl.evals.score.baseline import constant_baseline
    from vlmrl.evals.score.records import read_records
    from vlmrl.evals.score.summary import summarize
    from vlmrl.evals.score.table import markdown, summary_cells
    from vlmrl.rng import generator

    records = {
        seed: {name: sorted(read_records(path), key=lambda r: r.sample_id) for name, path in of.items()} for seed, of in cells.items()
    }
    first = next(iter(records.values()))
    golds = [(r.gold[0], r.gold[1]) for r in first["base"]]
    span, blind = constant_baseline(golds)
    lines = [
        "# What RL adds on the toy world",
        "",
        f"Held-out videos: {len(golds)}. Constant-answer baseline ({span[0]:.1f} to {span[1]:.1f} s): mIoU {blind:.3f}.",
        "Greedy answers, one prompt (think or not) throughout.",
        "Intervals of differences are paired 95% percentile bootstraps over questions, those of means as `vlmrl eval` prints them.",
        "",
        "## Gain in mIoU over SFT, same seed",
        "",
    ]
    names = [name for name in first if name not in ("base", "SFT")]
    rows = [["seed", *names]]
    pooled: dict[str, list[float]] = {name: [] for name in names}
    for seed, of in records.items():
        before = [r.scores["tiou"] for r in of["SFT"]]
        row = [str(seed)]
        for name in names:
            after = [r.scores["tiou"] for r in of[name]]
            differences = [y - x for x, y in zip(before, after, strict=True)]
            low, high = percentile_interval(differences, generator(0, "bench", name, seed))
            gain = sum(after) / len(after) - sum(before) / len(before)
            pooled[name].append(gain)
            row.append(f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]")
        rows.append(row)
    rows.append(["mean", *(f"{sum(pooled[name]) / len(pooled[name]):+.3f}" for name in names)])
    lines += [markdown(rows), "## All numbers", ""]
    shown = ("miou", "r1@0.3", "r1@0.5", "r1@0.7", "parse_rate", "think_rate", "tokens")
    for seed, of in records.items():
        lines += [f"### Seed {seed}", "", markdown(summary_cells({name: summarize(r, 0) for name, r in of.items()}, shown))]
    lines += [
        *how_measured(
            arguments, "the recipe and its controls: `configs/recipes/toy_grounding.yaml`, `benchmarks/learning/toy_grounding.py`"
        ),
        "The SFT rows are annotated loosely (boundaries up to a second off), the rows that RL and the SFT control train on exactly.",
        "The toy world shows that the machinery works; it says nothing about benchmarks of real videos.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=["run.threads=1"], help="overrides for every run (default: one thread each)")
    parser.add_argument("--write", type=Path, default=ROOT / "docs/benchmarks/toy_grounding.md")
    args = parser.parse_args()
    from vlmrl import fs

    out = args.out.absolute()
    with ThreadPoolExecutor() as controls, ThreadPoolExecutor() as mains:
        for one in [mains.submit(run_seed, seed, out, controls, args.set) for seed in args.seeds]:
            one.result()
    cells = {seed: records_of(seed, out) for seed in args.seeds}
    text = document(cells, f"python -m benchmarks.learning.toy_grounding --seeds {' '.join(map(str, args.seeds))}")
    fs.mkdir(args.write.parent)
    fs.write_text(args.write, text)
    print(text)


if __name__ == "__main__":
    main()
