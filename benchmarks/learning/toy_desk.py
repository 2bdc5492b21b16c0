"""What RL teaches in episodes of several turns: toy_desk before and after, GRPO over attempts, GiGPO and a control, over seeds.

    python -m benchmarks.learning.toy_desk --seeds 0 1 2 --write docs/benchmarks/toy_desk.md

For each seed (weights, order of tasks, sampling): one base model, which reads screens and is unsure where to click; then
`configs/recipes/toy_desk_grpo.yaml` and `toy_desk_gigpo.yaml` from it, and the latter once more with returns that are dealt anew to the
attempts of each group (`toy_desk_plugin.py`); all with the same tasks, steps and attempts. Before and after, each plays
the held-out episodes of the suite `toy_desk`: eight times as in training (temperature 1), and once greedily. Differences are paired by
episode. Sampled play decides: greedy play does the same again wherever a screen comes back, so any update may free it. Finished runs
are kept, so it can be stopped and goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, how_measured, percentile_interval

METHODS = {"gigpo": "GiGPO", "grpo": "GRPO over attempts", "shuffled": "GiGPO, returns dealt anew"}
CONTROL = "shuffled"
RECIPES = {"shuffled": "gigpo"}
"""Method -> whose recipe it runs, where it has none of its own."""
SUITE = "toy_desk"
ATTEMPTS = 8
"""Sampled attempts at each held-out episode."""


def command(method: str, seed: int, out: Path, extra: Sequence[str]) -> list[str]:
    """A run that plays the suite at its start and at its end."""
    recipe = ROOT / "configs/recipes" / f"toy_desk_{RECIPES.get(method, method)}.yaml"
    settings = [f"run.seed={seed}", f"toy.base_seed={seed}", f"toy.cache={out / f'cache-{seed}'}", f"run.root={out}", "run.trackers=[]"]
    settings += [f"run.name={method}-{seed}", f"eval.suite={SUITE}", "eval.source=null"]
    if method == CONTROL:
        settings += ["plugins=[benchmarks.learning.toy_desk_plugin]", "stages.rl.advantage.name=gigpo_shuffled"]
    return [sys.executable, "-m", "vlmrl", "train", str(recipe), *settings, *extra]


def logged(arguments: Sequence[str], log: Path) -> int:
    """Exit status of a command in this checkout, which writes at the end of `log`."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("ab") as file:
        return subprocess.run(arguments, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stdout=file, stderr=file, check=False).returncode


def run(arguments: Sequence[str], folder: Path) -> None:
    """One run, unless it is finished.

    Raises:
        BenchmarkError: it failed; names its log.
    """
    if (folder / "FINISHED").exists():
        return
    print(f"{folder.name}: running", flush=True)
    log = folder.parent / f"{folder.name}.log"
    status = logged(arguments, log)
    if status:
        raise BenchmarkError(f"{folder.name} ended with {status}; see {log}")


def greedy(out: Path, run_name: str, stage: str) -> list[Any]:
    """Records of the suite's episodes at a stage of a run, by episode."""
    from vlmrl.evals.score.records import read_records

    return sorted(read_records(out / run_name / "eval" / "suite" / stage / f"{SUITE}.jsonl"), key=lambda r: r.sample_id)


def sampled(model: Path, name: str, out: Path) -> list[Any]:
    """Records of sampled attempts at the suite's episodes. Attempts that were played before are kept.

    Raises:
        BenchmarkError: the evaluation failed; names its log.
    """
    from vlmrl.evals.score.records import read_records

    folder = out / "sampled" / name
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [sys.executable, "-m", "vlmrl", "eval", str(model), "--suite", SUITE, "--out", str(folder)]
    arguments += ["--samples", str(ATTEMPTS), "--temperature", "1"]
    log = out / f"sampled-{name}.log"
    status = logged(arguments, log)
    if status:
        raise BenchmarkError(f"the evaluation of {name} ended with {status}; see {log}")
    return sorted(read_records(folder / f"{SUITE}.jsonl"), key=lambda r: (r.sample_id, r.k))


def base_of(out: Path, seed: int) -> Path:
    """The base model that the runs of a seed began from."""
    (found,) = (out / f"cache-{seed}").glob("base-*/run/final")
    return found


def by_episode(records: Sequence[Any]) -> dict[str, float]:
    """Mean success of the attempts at each episode."""
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record.sample_id, []).append(record.scores["success"])
    return {episode: sum(values) / len(values) for episode, values in found.items()}


def paired(before: Sequence[Any], after: Sequence[Any], name: str) -> dict[str, Any]:
    """Mean difference of success over the episodes that both sides played without a fault, with its 95% bootstrap interval."""
    from vlmrl.rng import generator

    a, b = by_episode(before), by_episode(after)
    differences = [b[episode] - a[episode] for episode in a if episode in b]
    if not differences:
        raise BenchmarkError(f"{name}: no episode was played on both sides without a fault")
    low, high = percentile_interval(differences, generator(0, "bench", name))
    of = {"n": len(differences), "difference": sum(differences) / len(differences), "low": low, "high": high}
    return of | {"differences": differences}


def mean(records: Sequence[Any], score: str = "success") -> float:
    return sum(r.scores[score] for r in records) / len(records)


def minutes(folder: Path) -> float:
    """Time of the steps of RL of a run, in minutes."""
    from vlmrl.run.tracking import read_metrics

    return sum(float(line.get("time/step_total", 0.0)) for line in read_metrics(folder / "metrics.jsonl")) / 60


def over_seeds(results: Sequence[Mapping[str, Any]], method: str, against: str) -> dict[str, Any] | None:
    """Mean over the episodes of all seeds of what `paired` compares; episodes are drawn again within each seed."""
    from vlmrl.rng import generator

    found = [one["methods"][method][against] for one in results]
    if not all(found):
        return None
    every = [difference for one in found for difference in one["differences"]]
    low, high = percentile_interval(every, generator(0, "bench", method, against))
    return {"n": len(every), "difference": sum(every) / len(every), "low": low, "high": high}


def result(seed: int, before: Sequence[Any], after: Mapping[str, Sequence[Any]], took: Mapping[str, float]) -> dict[str, Any]:
    """The numbers of one seed and one way of playing. `after`: method -> its records; `took`: method -> minutes of RL."""
    out: dict[str, Any] = {"seed": seed, "episodes": len(by_episode(before)), "before": mean(before), "methods": {}}
    for method, records in after.items():
        out["methods"][method] = {
            "after": mean(records),
            "spl": mean(records, "spl"),
            "minutes": took[method],
            "gain": paired(before, records, f"{method}-{seed}"),
            "against_control": None
            if method == CONTROL or CONTROL not in after
            else paired(after[CONTROL], records, f"{method}-{CONTROL}-{seed}"),
        }
    return out


def shown(value: Mapping[str, Any] | None) -> str:
    return "-" if value is None else f"{value['difference']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]"


def cells(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table of one way of playing."""
    out = [["seed", "method", "before", "after", "after - before", "- returns dealt anew", "success by path length", "minutes of RL"]]
    for one in results:
        for method, found in one["methods"].items():
            row = [str(one["seed"]), METHODS[method], f"{one['before']:.3f}", f"{found['after']:.3f}"]
            out.append([*row, shown(found["gain"]), shown(found["against_control"]), f"{found['spl']:.3f}", f"{found['minutes']:.1f}"])
    for method in results[0]["methods"]:
        gain, against = (over_seeds(results, method, name) for name in ("gain", "against_control"))
        out.append(["all", METHODS[method], "", "", shown(gain), shown(against), "", ""])
    return out


def document(results: Mapping[str, Sequence[Mapping[str, Any]]], arguments: str) -> str:
    """The page. `results`: `sampled` and `greedy` -> a result per seed."""

    from vlmrl.evals.score.table import markdown

    lines = [
        "# What RL teaches in episodes of several turns",
        "",
        f"Success on {results['sampled'][0]['episodes']} held-out episodes of `toy_desk` (two to four actions are right, six the most). "
        "Differences are paired by episode, with 95% percentile bootstrap intervals over episodes; `all` takes the episodes of all seeds "
        "together. In the last method the returns of each group are dealt anew to its attempts: same rows, steps and sizes of advantages, "
        "but nothing to learn from.",
        "",
        f"## Sampled as in training, {ATTEMPTS} attempts at each",
        "",
        markdown(cells(results["sampled"])),
        "## Greedy, one attempt at each",
        "",
        "With one screen of history, greedy play does the same again wherever a screen comes back. It is often stuck, and any update may "
        "free it: the control gains as well. Read the difference to the control, and the table above.",
        "",
        markdown(cells(results["greedy"])),
        *how_measured(
            arguments,
            "recipes: `configs/recipes/toy_desk_grpo.yaml`, `toy_desk_gigpo.yaml`; `run.seed` and `toy.base_seed` as in the table",
            beside="; one thread a run; other programs beside it",
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-toy-desk"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--set", nargs="*", default=["run.threads=1"], help="overrides for every run (default: one thread each)")
    parser.add_argument("--write", type=Path, help="Markdown page; the numbers go beside it as .json")
    args = parser.parse_args()
    from vlmrl import fs

    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {"sampled": [], "greedy": []}
    for seed in args.seeds:
        for method in args.methods:
            run(command(method, seed, out, args.set), out / f"{method}-{seed}")
        took = {method: minutes(out / f"{method}-{seed}") for method in args.methods}
        before = {"sampled": sampled(base_of(out, seed), f"base-{seed}", out), "greedy": greedy(out, f"{args.methods[0]}-{seed}", "base")}
        after = {
            "sampled": {method: sampled(out / f"{method}-{seed}" / "final", f"{method}-{seed}", out) for method in args.methods},
            "greedy": {method: greedy(out, f"{method}-{seed}", "rl") for method in args.methods},
        }
        for way, kept in results.items():
            kept.append(result(seed, before[way], after[way], took))
    given = "" if args.set == ["run.threads=1"] else f" --set {' '.join(args.set)}"
    text = document(results, f"python -m benchmarks.learning.toy_desk --seeds {' '.join(map(str, args.seeds))}{given}")
    if args.write is not None:
        fs.mkdir(args.write.parent)
        fs.write_text(args.write, text)
        fs.write_text(args.write.with_suffix(".json"), json.dumps(results, sort_keys=True) + "\n")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
