"""What RL teaches in the shell games, over seeds, beside controls of equal budget.

    python -m benchmarks.learning.toy_video --seeds 0 1 2 3 4 --write docs/benchmarks/toy_video.md
    python -m benchmarks.learning.toy_video --recipe toy_shell --controls without length answers --write docs/benchmarks/toy_shell.md

For each seed (weights, order of rows, sampling): the recipe (base -> SFT -> RL); then, with the steps and rollouts of its RL, controls of
one change each (`CONTROLS`). The world has another seed than those that the recipe was chosen on. Finished runs are kept, so it can be
stopped and goes on.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, how_measured

SLOTS = threading.Semaphore(2)
"""Runs at a time."""
RECIPES = {name: ROOT / f"configs/recipes/{name}.yaml" for name in ("toy_video", "toy_shell")}
WORLD_SEEDS = {"toy_video": 3, "toy_shell": 1}
"""Of the worlds of the runs: none on whose videos the recipe was chosen, which are 0 (both), and 1 and 2 (`toy_video`)."""
Stages = list[dict[str, Any]]


def without_reward(stages: Stages) -> Stages:
    """RL for right answers in the right form, and nothing more."""
    rl = copy.deepcopy(stages[1])
    rl["rewards"] = [reward for reward in rl["rewards"] if reward["name"] != "right_without_thought"]
    return [rl]


def with_length(stages: Stages) -> Stages:
    """The reward in question replaced by one for few tokens, of the same weight, which every answer gets."""
    rl = copy.deepcopy(stages[1])
    (place,) = [i for i, reward in enumerate(rl["rewards"]) if reward["name"] == "right_without_thought"]
    rl["rewards"][place] |= {"name": "length", "low": 0, "high": 7, "maximum": 40}
    return [rl]


def with_ranks(stages: Stages) -> Stages:
    """The same under an advantage of ranks."""
    (rl,) = with_length(stages)
    return [rl | {"advantage": {"name": "g2rpo"}}]


def with_own_deviation(stages: Stages) -> Stages:
    """GRPO's advantage: each group divided by its own deviation, so that the small bonus is all there is where every answer is right."""
    return [copy.deepcopy(stages[1]) | {"advantage": {"name": "grpo"}}]


def supervised(stages: Stages) -> Stages:
    """Fine-tuning that goes on, for about as many seconds as the RL takes: three steps for one."""
    return [copy.deepcopy(stages[0]) | {"name": "rl", "steps": 3 * stages[1]["steps"]}]


def answers_only(stages: Stages) -> Stages:
    """Both stages without thoughts: fine-tuning on the careless answers, then RL for right ones."""
    sft = copy.deepcopy(stages[0]) | {"answer_format": "answer_only", "thought_dropout": 0.0}
    return [sft, without_reward(stages)[0] | {"answer_format": "answer_only"}]


CONTROLS: dict[str, tuple[str, Callable[[Stages], Stages]]] = {
    "without": ("without the reward", without_reward),
    "length": ("cost on every length", with_length),
    "ranks": ("the same, G2RPO", with_ranks),
    "deviation": ("GRPO: each group by its own deviation", with_own_deviation),
    "answers": ("answers only", answers_only),
    "supervised": ("fine-tuning goes on", supervised),
}
FROM_BASE = ("answers",)
"""Controls that start where SFT starts; the others start from the recipe's own SFT."""


def command(seed: int, out: Path, name: str, extra: Sequence[str], recipe: str) -> list[str]:
    seeds = [f"run.seed={seed}", f"toy.base_seed={seed}", f"toy.world.seed={WORLD_SEEDS[recipe]}", f"toy.cache={out / f'cache-{seed}'}"]
    run = [f"run.name={name}", f"run.root={out}", "run.trackers=[]"]
    return [sys.executable, "-m", "vlmrl", "train", str(RECIPES[recipe]), *seeds, *run, *extra]


def share_world(seeds: Sequence[int], out: Path, extra: Sequence[str], recipe: str) -> None:
    """One world for all seeds, each of which has a cache of its own: a cache is locked while a base model is trained in it."""
    from vlmrl.config.load import load
    from vlmrl.extras.toy.kinds import make_world, world_hash

    toy = load(RECIPES[recipe], [f"toy.world.seed={WORLD_SEEDS[recipe]}", *extra]).config.toy
    assert toy is not None
    name = f"world-{world_hash(toy.world)}"
    make_world(out / name, toy.world)
    for seed in seeds:
        cache = out / f"cache-{seed}"
        cache.mkdir(exist_ok=True)
        if not (cache / name).exists():
            (cache / name).symlink_to(out / name)


def run_seed(seed: int, out: Path, controls: Sequence[str], pool: ThreadPoolExecutor, extra: list[str], recipe: str) -> None:
    """The recipe with a seed, then its controls (which may run side by side)."""
    from vlmrl.config.load import load

    main = out / f"main-{seed}"
    run(command(seed, out, main.name, extra, recipe), main)
    stages = load(RECIPES[recipe], extra).config.model_dump(mode="json")["stages"]
    waiting = []
    for name in controls:
        start = [] if name in FROM_BASE else [f"model.path={main / 'stages' / 'sft'}"]
        settings = [*extra, *start, "eval.at_start=false", f"stages={json.dumps(CONTROLS[name][1](stages))}"]
        waiting.append(pool.submit(run, command(seed, out, f"{name}-{seed}", settings, recipe), out / f"{name}-{seed}"))
    for one in waiting:
        one.result()


def run(arguments: list[str], folder: Path) -> None:
    if (folder / "FINISHED").exists():
        return
    with SLOTS:
        print(f"{folder.name}: running", flush=True)
        log = folder.parent / f"{folder.name}.log"
        with log.open("ab") as file:
            subprocess.run(arguments, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=file, stderr=file)


# ---- tables ------------------------------------------------------------------------------------------------------------

Part = Callable[[Any], bool]
PARTS: dict[str, Part] = {"easy": lambda r: r.category == "easy", "hard": lambda r: r.category == "hard"}


def mean(records: Sequence[Any], value: Callable[[Any], float]) -> float:
    return sum(map(value, records)) / len(records)


def right(record: Any) -> float:
    return float(record.scores["exact"])


def thinks(record: Any) -> float:
    return float(record.think.has)


def gap(before: Sequence[Any], after: Sequence[Any]) -> tuple[float, float, float]:
    """Mean of after - before on the same questions, each with a video of its own, and its 95% interval (Tango's)."""
    from vlmrl.metrics.intervals import tango

    assert [r.sample_id for r in before] == [r.sample_id for r in after]
    differences = [right(b) - right(a) for a, b in zip(before, after, strict=True)]
    low, high = tango(differences.count(1.0), differences.count(-1.0), len(differences))
    return sum(differences) / len(differences), low, high


def shown(value: tuple[float, float, float]) -> str:
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*value)


def base_line(log: Path) -> str:
    """Steps of pretraining and the held-out score it ended with, as the run said."""
    said = [line for line in log.read_text(encoding="utf-8").splitlines() if "pretrain: held-out score" in line]
    words = said[0].split("held-out score ")[1].split() if said else []
    return f"{words[0]} after {words[2]}" if words else "-"


def document(of: Mapping[int, Mapping[str, list[Any]]], bases: Mapping[int, str], arguments: str, recipe: str) -> str:
    """The tables as Markdown. `of`: seed -> name of an evaluation -> its records."""

    from vlmrl.evals.score.table import markdown

    def part(seed: int, name: str, which: str) -> list[Any]:
        return sorted((r for r in of[seed][name] if PARTS[which](r)), key=lambda r: r.sample_id)

    main: list[list[str]] = [
        [
            "seed",
            "base: score, steps",
            *("hard: base", "SFT", "RL", "RL - SFT", "RL - base", "thinks: SFT", "RL"),
            *("easy: base", "SFT", "RL", "thinks: SFT", "RL"),
        ]
    ]
    controls: list[list[str]] = [["seed", "control", "hard", "control - RL", "thinks on hard", "easy", "thinks on easy"]]
    rates: dict[str, list[float]] = {"hard": [], "easy": []}
    lows: list[float] = []
    for seed in of:
        row = [str(seed), bases[seed]]
        for which in ("hard", "easy"):
            base, before, after = (part(seed, stage, which) for stage in ("base", "sft", "rl"))
            row += [f"{mean(records, right):.3f}" for records in (base, before, after)]
            if which == "hard":
                changes = gap(before, after), gap(base, after)
                row += [shown(change) for change in changes]
                lows += [change[1] for change in changes]
            row += [f"{mean(records, thinks):.2f}" for records in (before, after)]
            rates[which].append(mean(after, thinks))
        main.append(row)
        for name, (label, _) in CONTROLS.items():
            if name in of[seed]:
                hard, easy = part(seed, name, "hard"), part(seed, name, "easy")
                change = gap(part(seed, "rl", "hard"), hard)
                cells = [f"{mean(hard, right):.3f}", shown(change), f"{mean(hard, thinks):.2f}", f"{mean(easy, right):.3f}"]
                controls.append([str(seed), label, *cells, f"{mean(easy, thinks):.2f}"])
    first = next(iter(of))
    counts = {which: len(part(first, "rl", which)) for which in PARTS}
    lines = [
        "# What RL teaches in the shell game",
        "",
        f"Held-out videos that no choice was made on: {len(of[first]['rl'])}, of them {counts['easy']} easy (where was the ball at the "
        f"start?) and {counts['hard']} hard (where is it after four to eight exchanges?). Greedy answers; chance is 1/3. Differences are "
        "paired, with Tango's 95% intervals over questions.",
        "",
        markdown(main),
        f"Think rate after RL, mean over seeds: {sum(rates['hard']) / len(of):.3f} on hard, {sum(rates['easy']) / len(of):.3f} on easy. "
        f"Lowest end of an interval of RL - SFT and RL - base on hard: {min(lows):+.3f}.",
        "",
        "## Controls with the same steps and rollouts",
        "",
        markdown(controls),
        *how_measured(
            arguments,
            f"recipe: `configs/recipes/{recipe}.yaml` with `toy.world.seed={WORLD_SEEDS[recipe]}`; `run.seed` and `toy.base_seed` as in "
            "the tables",
            beside="; one thread a run",
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--recipe", choices=list(RECIPES), default="toy_video")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--controls", nargs="*", choices=list(CONTROLS), default=list(CONTROLS))
    parser.add_argument("--set", nargs="*", default=["run.threads=1"], help="overrides for every run (default: one thread each)")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    from vlmrl import fs
    from vlmrl.evals.score.records import read_records

    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    share_world(args.seeds, out, args.set, args.recipe)
    with ThreadPoolExecutor() as controls, ThreadPoolExecutor() as mains:
        for one in [mains.submit(run_seed, seed, out, args.controls, controls, args.set, args.recipe) for seed in args.seeds]:
            one.result()
    of: dict[int, dict[str, list[Any]]] = {}
    for seed in args.seeds:
        of[seed] = {name: list(read_records(out / f"main-{seed}/eval/{name}.jsonl")) for name in ("base", "sft", "rl")}
        of[seed] |= {name: list(read_records(out / f"{name}-{seed}/eval/rl.jsonl")) for name in args.controls}
    bases = {seed: base_line(out / f"main-{seed}.log") for seed in args.seeds}
    said = f"python -m benchmarks.learning.toy_video --recipe {args.recipe} --seeds {' '.join(map(str, args.seeds))}"
    said += f" --controls {' '.join(args.controls)}" if args.controls != list(CONTROLS) else ""
    text = document(of, bases, said, args.recipe)
    if args.write is not None:
        fs.mkdir(args.write.parent)
        fs.write_text(args.write, text)
    print(text)


if __name__ == "__main__":
    main()
