"""Accuracy over visual tokens per question, before and after distillation, of the models of a study.

    vlmrl study distill_grounding
    python -m benchmarks.learning.distill_tokens runs/distill_grounding
    python -m benchmarks.learning.distill_tokens runs/distill_grounding --draw      the picture alone, which needs matplotlib

Every base model of the study and the ends of its arms `distill`, `imitate` and `grpo` are asked the held-out questions with two frames a
second and with one, of 56 x 56 pixels and of 28 x 28. Answers that are there are not generated again. Writes
docs/benchmarks/STUDY_tokens.md and .json, and docs/images/STUDY.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, machine, need, publish, revision

SIDES = {56: {"min_pixels": 3136, "max_pixels": 4704}, 28: {"min_pixels": 784, "max_pixels": 1200}}
SEEN = {
    f"{side} x {side}, {fps} fps": {"fps": float(fps), **pixels, "max_frames": 32, "decoder": "pyav"}
    for side, pixels in SIDES.items()
    for fps in (2, 1)
}
"""How the questions are shown -> media settings."""
STUDIES = {
    "distill_grounding": {"task": None, "learned": "28 x 28, 2 fps", "axis": "mIoU of 200 held-out videos"},
    "distill_shell": {"task": "shell_end", "learned": "56 x 56, 1 fps", "axis": "share of right answers, ball at the end"},
}
"""Study -> task of the rows that count (all where None), how its arms saw media, and what the picture's upright axis says."""
ARMS = {"base": "before", "distill": "after distillation", "imitate": "after teacher_sft", "grpo": "after GRPO on labels"}


def models(study: Path, seed: int) -> dict[str, Path]:
    """Folders of a seed's models: its base, and the ends of its arms."""
    runs = {arm: study / "runs" / f"{arm}-s{seed}" / "final" for arm in ARMS if arm != "base"}
    (base,) = (study / "cache" / f"s{seed}").glob("base-*/run/final")
    return {"base": base, **runs}


def suite(study: Path, seed: int) -> dict[str, Any]:
    """The questions of a study, a task for each way to show them."""
    recipe = json.loads((study / "plan.json").read_text(encoding="utf-8"))["recipes"]["distill"]
    (world,) = (study / "cache" / f"s{seed}").glob("world-*")
    asked = {"source": "test.jsonl", "answer_format": "think_or_not", "max_new_tokens": recipe["eval.max_new_tokens"]}
    kind = json.loads((world / "test.jsonl").read_text(encoding="utf-8").splitlines()[0])["answer_type"]
    tasks = [
        {"id": f"seen_{n}", "media": media, "answer_type": kind, "max_prompt_tokens": 512, **asked} for n, media in enumerate(SEEN.values())
    ]
    return {"id": study.name, "version": 1, "data_root": str(world), "batch_prompts": recipe["eval.batch_prompts"], "tasks": tasks}


def ask(study: Path, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Ask a seed's models; model -> how it was shown -> `score`, `tokens` of a prompt and `questions`.

    Raises:
        BenchmarkError: an evaluation failed.
    """
    import yaml

    from vlmrl import fs

    out: dict[str, dict[str, dict[str, float]]] = {}
    for name, folder in models(study, seed).items():
        place = study / "tokens" / f"{name}-s{seed}"
        fs.mkdir(place)
        file = place / "suite.yaml"
        fs.write_text(file, yaml.safe_dump(suite(study, seed)))
        command = [sys.executable, "-m", "vlmrl", "eval", str(folder), "--suite", str(file), "--out", str(place), "--device", "cpu"]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"{name} of seed {seed}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        print(f"{name} of seed {seed}", flush=True)
        out[name] = {seen: read(place / f"seen_{n}.jsonl", STUDIES[study.name]["task"]) for n, seen in enumerate(SEEN)}
    return out


def read(file: Path, task: str | None) -> dict[str, float]:
    """Mean score and mean prompt length of the records of a file, those of one kind of question where a task is named."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    records = [r for r in records if task is None or r["task"] == task]
    (metric,) = {name for r in records for name in r["scores"]}
    return {
        "score": statistics.fmean(r["scores"][metric] for r in records),
        "tokens": statistics.fmean(r["n_in"] for r in records),
        "questions": len(records),
    }


def points(seeds: dict[str, Any]) -> dict[str, dict[str, tuple[float, float, float, float]]]:
    """Model -> how it was shown -> visual tokens of a question, mean score over seeds, and the ends of its 95% interval (Student's t).

    The words of a prompt are as many however it is shown, and frames of 56 x 56 are four times the tokens of those of 28 x 28: the length
    of both gives the visual ones.
    """
    from scipy.stats import t

    out: dict[str, dict[str, tuple[float, float, float, float]]] = {}
    for name, seen in ((name, seen) for name in ARMS for seen in SEEN):
        found = [of[name] for of in seeds.values()]
        side, _, rate = seen.partition(", ")
        large, small = (statistics.fmean(of[f"{n} x {n}, {rate}"]["tokens"] for of in found) for n in (56, 28))
        visual = (large - small) / 3 * (4 if side.startswith("56") else 1)
        scores = [of[seen]["score"] for of in found]
        mean = statistics.fmean(scores)
        half = float(t.ppf(0.975, len(scores) - 1)) * statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
        out.setdefault(name, {})[seen] = (visual, mean, mean - half, mean + half)
    return out


def page(study: str, held: dict[str, Any]) -> list[str]:
    """The table as Markdown."""
    from vlmrl.evals.score.table import markdown

    found, about = held["points"], STUDIES[study]
    rows = [["shown", "visual tokens", *ARMS.values()]]
    for seen in SEEN:
        cells = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for _, mean, low, high in (found[name][seen] for name in ARMS)]
        rows.append([f"{seen}{' (learned with)' if seen == about['learned'] else ''}", f"{found['base'][seen][0]:.1f}", *cells])
    return [
        f"# {study}: accuracy over visual tokens",
        "",
        f"The {about['axis']}: the mean over {len(held['seeds'])} seeds, each with a base model of its own, with Student's 95% interval",
        "over them. Visual tokens are the mean of a question. Greedy answers.",
        "",
        markdown(rows),
        "",
        f"* command: `python -m benchmarks.learning.distill_tokens runs/{study}`, behind `vlmrl study {study}`",
        f"* machine: {', '.join(f'{k} {v}' for k, v in held['machine'].items())}; this repository at {held['revision']}",
        "",
    ]


def draw(study: str, held: dict[str, Any], to: Path) -> None:
    """Draw the accuracy over visual tokens of the base, and of what distillation made of it."""
    need("matplotlib", "without --draw")
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    mpl.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), dpi=120)
    styles = {"base": ("o--", "#777777"), "distill": ("o-", "#0b6e99")}
    for name, (style, color) in styles.items():
        line = sorted(held["points"][name].values())
        below, above = ([abs(p[end] - p[1]) for p in line] for end in (2, 3))
        where = [p[0] for p in line]
        axes.errorbar(where, [p[1] for p in line], yerr=[below, above], fmt=style, color=color, capsize=3, label=ARMS[name])
    learned = held["points"]["base"][STUDIES[study]["learned"]][0]
    axes.axvline(learned, color="#bbbbbb", linewidth=1, zorder=0)
    axes.annotate("what the policy sees", (learned, axes.get_ylim()[0]), xytext=(4, 4), textcoords="offset points", color="#777777")
    ticks = sorted(p[0] for p in held["points"]["base"].values())
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("visual tokens per question")
    axes.set_ylabel(STUDIES[study]["axis"])
    axes.set_title(f"{study}, {len(held['seeds'])} seeds, 95% interval over seeds", fontsize=10)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="folder of a study that was run")
    parser.add_argument("--seeds", type=int, nargs="+", help="by default all that are complete")
    parser.add_argument("--draw", action="store_true", help="only draw, from the numbers that are there")
    parser.add_argument("--write", type=Path, default=ROOT / "docs", help="folder of the documentation")
    args = parser.parse_args()
    name = args.study.name
    if name not in STUDIES:
        sys.exit(f"error: {args.study}: no folder of {' or '.join(STUDIES)}")
    file = args.write / "benchmarks" / f"{name}_tokens.json"
    if not args.draw:
        from vlmrl import fs

        folder = args.study.absolute()
        seeds = args.seeds or sorted(int(path.parts[-2].rpartition("-s")[2]) for path in folder.glob("runs/full-s*/FINISHED"))
        found = {str(seed): ask(folder, seed) for seed in seeds}
        held = {"machine": machine(), "revision": revision(), "seeds": found, "points": points(found)}
        fs.write_text(file, json.dumps(held, indent=1) + "\n")
        publish(file.with_suffix(""), page(name, held))
        return
    draw(name, json.loads(file.read_text(encoding="utf-8")), args.write / "images" / f"{name}.png")


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
