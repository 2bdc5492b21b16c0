"""Accuracy over visual tokens per question, before and after distillation: a picture of the runs of a study.

    vlmrl study distill_grounding
    python -m benchmarks.learning.distill_tokens runs/distill_grounding
    python -m benchmarks.learning.distill_tokens runs/distill_grounding --draw      the picture, which needs matplotlib

Reads the evaluations of seeds whose arms are all done. Writes docs/benchmarks/FOLDER.json, and with --draw docs/images/FOLDER.png from it.
A study that was asked with overrides lies in a folder of another name, which names its files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, need

_MIOU, _RIGHT = "mIoU of 200 held-out videos", "share of right answers"
AXES = {"distill_grounding": _MIOU, "distill_shell": _RIGHT, "distill_larger": _MIOU, "distill_crop": _RIGHT}
"""Study -> what the picture's upright axis says."""
FULL, FEW = "base, all tokens", "base, few tokens"
SHOWN = {
    FULL: ("full", "base"),
    FEW: ("distill", "base"),
    "distill": ("distill", "tune"),
    "imitate": ("imitate", "tune"),
    "grpo": ("grpo", "tune"),
    "useless": ("useless", "tune"),
    "suppress": ("suppress", "tune"),
}
"""Name -> arm of the study, and which of its evaluations."""
DRAWN = {
    "distill": ("distillation", "#0b6e99", "o", 0.04),
    "imitate": ("teacher_sft", "#2f9e44", "s", 0.08),
    "grpo": ("GRPO on labels", "#c2410c", "^", 0.12),
}
"""Name -> label, colour, marker, and how far it is moved aside, as a share of all tokens, so that intervals do not cover each other."""


def read(file: Path, task: str | None = None, asked: str = "") -> dict[str, Any]:
    """Mean score with its 95% interval over questions, and mean prompt length, of a file's records.

    Args:
        task: of these records; None: of all.
        asked: the score, where records have several.

    Raises:
        BenchmarkError: the questions are too few, or too much alike, for an interval.
    """
    from vlmrl.metrics.intervals import mean_interval
    from vlmrl.rng import generator

    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    records = [r for r in records if task is None or r["task"] == task]
    found = {name for r in records for name in r["scores"]}
    (metric,) = found & {asked} or found
    scores = [r["scores"][metric] for r in records]
    bounds = mean_interval(scores, generator(0, "bootstrap", metric), shares=set(scores) <= {0, 1})
    if bounds.low is None or bounds.high is None:
        raise BenchmarkError(f"{file}: no interval: {bounds.why}")
    tokens = statistics.fmean(r["n_in"] for r in records)
    numbers = {"score": statistics.fmean(scores), "low": bounds.low, "high": bounds.high, "tokens": tokens}
    return {name: round(number, 4) for name, number in numbers.items()} | {"questions": len(records)}


def complete(study: Path) -> list[int]:
    """Seeds of which every arm is done.

    Raises:
        BenchmarkError: there is none.
    """
    arms = {arm for arm, _ in SHOWN.values()}
    done = {(arm, int(seed)) for arm, _, seed in (file.parent.name.rpartition("-s") for file in study.glob("runs/*/FINISHED"))}
    seeds = sorted(seed for seed in {seed for _, seed in done} if all((arm, seed) in done for arm in arms))
    if not seeds:
        raise BenchmarkError(f"{study}: no seed has all of {', '.join(sorted(arms))}; run `vlmrl study {study.name}` first")
    return seeds


def held(study: Path) -> dict[str, Any]:
    """What the study's runs say: name -> a seed -> what `read` gives."""
    measure = json.loads((study / "plan.json").read_text(encoding="utf-8"))["study"]["measure"]
    asked, _, task = measure.partition(" ")[2].partition(" in ")
    seeds = complete(study)
    files = {
        name: [study / "runs" / f"{arm}-s{seed}" / "eval" / f"{which}.jsonl" for seed in seeds] for name, (arm, which) in SHOWN.items()
    }
    return {"seeds": seeds, "models": {name: [read(file, task or None, asked) for file in of] for name, of in files.items()}}


def visual(models: Mapping[str, Sequence[Mapping[str, float]]], share: float) -> tuple[float, float]:
    """Visual tokens of a question with all, and with the `share` of them that the policy has: the words of both prompts are as many."""
    lost = models[FULL][0]["tokens"] - models[FEW][0]["tokens"]
    return lost / (1 - share), lost / (1 - share) * share


def draw(name: str, found: Mapping[str, Any], to: Path, share: float) -> None:
    """Draw for each seed its base with all and with few tokens, and what was made of the latter."""
    need("matplotlib", "without --draw")
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    mpl.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    models, seeds = found["models"], found["seeds"]
    every, few = visual(models, share)
    figure, panels = pyplot.subplots(1, len(seeds), figsize=(2.7 * len(seeds) + 0.6, 3.4), dpi=120, sharey=True, squeeze=False)
    for n, axes in enumerate(panels[0]):

        def points(where: list[float], names: list[str], axes: Any = axes, n: int = n, **style: Any) -> None:
            of = [models[one][n] for one in names]
            bars = [[one["score"] - one["low"] for one in of], [one["high"] - one["score"] for one in of]]
            axes.errorbar(where, [one["score"] for one in of], yerr=bars, capsize=3, markersize=6, **style)

        points([few, every], [FEW, FULL], fmt="o--", color="#777777", label="base, trained with all")
        for key, (label, color, marker, aside) in DRAWN.items():
            points([few + aside * every], [key], fmt=marker, color=color, label=label)
        axes.set_xlim(0, every * 1.1)
        axes.set_title(f"seed {seeds[n]}", fontsize=10)
        axes.set_xlabel("visual tokens per question")
    panels[0][0].set_ylabel(AXES[name])
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="folder of a study that was run")
    parser.add_argument("--draw", action="store_true", help="only draw, from the numbers that were written")
    parser.add_argument("--share", type=float, default=0.25, help="share of the visual tokens that the policy has")
    parser.add_argument("--write", type=Path, default=ROOT / "docs", help="folder of the documentation")
    args = parser.parse_args()
    plan = args.study / "plan.json"
    study = json.loads(plan.read_text(encoding="utf-8"))["study"]["name"] if plan.is_file() else args.study.name
    if study not in AXES:
        raise BenchmarkError(f"{args.study}: no folder of {' or '.join(AXES)}")
    file = args.write / "benchmarks" / f"{args.study.name}.json"
    if args.draw:
        draw(study, json.loads(file.read_text(encoding="utf-8")), args.write / "images" / f"{args.study.name}.png", args.share)
        return
    from vlmrl import fs

    fs.write_text(file, json.dumps(held(args.study), indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
