"""Clicks on pages of MiniWoB++ from pixels: what generated pages teach, what rewards of the real ones add, and what needs no eyes.

    python -m benchmarks.learning.toy_pages --seeds 0 1 2 --write docs/benchmarks/toy_pages.md

For each seed (weights, tasks, sampling) `configs/recipes/toy_pages.yaml`: a tiny model learns to see on generated pages, and then from
the rewards of the real ones. From the same start, a second run first learns from demonstrations of the real pages (`vlmrl tools env play
--agent solve --rows`), and then from their rewards. Before and after, each plays held-out problems of each page greedily, one click each.

The best blind click is that of a policy that reads the task's text and does not look: for each text, the point that is right most often.
It is chosen on one half of fresh problems and counted on the other; where a page has many texts, a point for all of them may be better,
and the better of the two (on the first half) counts. Finished runs are kept, so it can be stopped and goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.common import ROOT, BenchmarkError, how_measured
from benchmarks.learning.toy_desk import logged, minutes, run
from vlmrl.extras.agents.toy_pages import PAGES_OF

RECIPE = ROOT / "configs/recipes/toy_pages.yaml"
EVERY = 4
"""Pixels between the points that a blind click may choose from."""
DEMONSTRATIONS, STEPS, RATE = 1000, 150, 1.0e-3
"""Episodes, steps of 32 rows and learning rate of the fine-tuning on real pages."""
COLUMNS = {"base": "after generated pages", "rl": "after RL", "sft": "after demonstrations", "sft_rl": "after these and RL"}


def command(seed: int, out: Path, extra: Sequence[str], *, recipe: Path = RECIPE, name: str = "rl") -> list[str]:
    """A run of a recipe that plays the held-out problems before and after each stage."""
    settings = [f"run.seed={seed}", f"toy.base_seed={seed}", f"toy.cache={out / f'cache-{seed}'}", f"run.root={out}"]
    return [sys.executable, "-m", "vlmrl", "train", str(recipe), *settings, f"run.name={name}-{seed}", "run.trackers=[]", *extra]


def demonstrate(out: Path) -> Path:
    """A folder of rows that solve problems of the real pages, made once.

    Raises:
        BenchmarkError: it failed.
    """
    folder = out / "demonstrations"
    if not (folder / "rows.jsonl").exists():
        options = [f"pages=[{', '.join(PAGES_OF)}]", "explain=false", "fresh_page=false", "--agent", "solve", "--rows"]
        form = ["--history", "1", "--answer-format", "answer_only", "--episodes", str(DEMONSTRATIONS), "--seed", "1"]
        played = [sys.executable, "-m", "vlmrl", "tools", "env", "play", "miniwob", str(folder), *options, *form]
        log = out / "demonstrations.log"
        if logged(played, log):
            raise BenchmarkError(f"no demonstrations; see {log}")
    return folder


def taught(out: Path, demonstrations: Path) -> Path:
    """The recipe with a stage on the demonstrations before its RL."""
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    stage = {"name": "sft", "kind": "sft", "source": {"path": str(demonstrations / "rows.jsonl"), "media_root": str(demonstrations)}}
    stage |= {"steps": STEPS, "batch": 32, "answer_format": "answer_only", "optim": {"lr": RATE, "schedule": "cosine", "warmup": 0.05}}
    recipe["stages"].insert(0, stage)
    recipe["eval"]["at_start"] = False
    written = out / "taught.yaml"
    written.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return written


def problems(page: str, n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """What `n` problems of a page ask, and where a click solves each of them: bool [n, lines, points of a line]."""
    from vlmrl.extras.agents.worlds.miniwob import miniwob
    from vlmrl.rng import key

    world = miniwob(pages=[page], explain=False, fresh_page=False)
    texts, right = [], []
    try:
        for i in range(n):
            texts.append(world.reset({}, key(seed, "blind", page, i)).text)
            right.append(world.right(EVERY))
    finally:
        world.close()
    return texts, np.array(right)


def best_blind(texts: Sequence[str], right: np.ndarray) -> tuple[int, int]:
    """Hits and clicks of the best blind policy, chosen on the problems of even numbers and counted on the others.

    Args:
        right: bool [n, ...], by problem where a click is right.
    """
    flat = right.reshape(len(texts), -1)
    even = np.arange(len(texts)) % 2 == 0
    everywhere = int(flat[even].mean(0).argmax())
    by_text: dict[str, int] = {}
    for text in set(texts):
        of = np.array([one == text for one in texts]) & even
        by_text[text] = int(flat[of].mean(0).argmax()) if of.any() else everywhere
    choices = {"text": [by_text[text] for text in texts], "one": [everywhere] * len(texts)}
    hits = {name: flat[np.arange(len(texts)), points] for name, points in choices.items()}
    # as many texts as problems fit any half of them, so the first half has to say it of problems left out in turn
    chosen = "text" if _left_out(texts, flat, even) > hits["one"][even].mean() else "one"
    return int(hits[chosen][~even].sum()), int((~even).sum())


def _left_out(texts: Sequence[str], flat: np.ndarray, even: np.ndarray) -> float:
    """How often a point for each text is right on the problem that had no say in it, over the first half."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(flat.shape[1], dtype=int))
    chosen: list[int] = np.flatnonzero(even).tolist()
    for i in chosen:
        sums[texts[i]] += flat[i]
    return float(np.mean([flat[i, int((sums[texts[i]] - flat[i]).argmax())] for i in chosen]))


def played(folder: Path, stage: str) -> dict[str, tuple[int, int]]:
    """Page -> successes and episodes of the held-out problems."""
    from vlmrl.evals.score.records import read_records

    hits, clicks = Counter[str](), Counter[str]()
    for record in read_records(folder / "eval" / f"{stage}.jsonl"):
        page = str(record.category)
        hits[page] += int(record.scores["success"])
        clicks[page] += 1
    return {page: (hits[page], clicks[page]) for page in sorted(clicks)}


def share(of: Sequence[int]) -> str:
    """A share with Wilson's interval: every problem is another one."""
    from vlmrl.metrics.intervals import wilson

    low, high = wilson(*of)
    return f"{of[0] / of[1]:.2f} [{low:.2f}, {high:.2f}]"


def cells(result: Mapping[str, Any]) -> list[list[str]]:
    """The table: a line for each page and seed."""
    out = [["page", "seed", "best blind click", *COLUMNS.values()]]
    for page, blind in result["blind"].items():
        for seed, kept in result["seeds"].items():
            out.append([f"`{page}`", seed, share(blind), *(share(kept[name][page]) for name in COLUMNS)])
    return out


def document(result: Mapping[str, Any], arguments: str) -> str:
    """The page."""
    from vlmrl.evals.score.table import markdown

    took = ", ".join(f"{kept['minutes']:.1f}" for kept in result["seeds"].values())
    n = next(iter(next(iter(result["seeds"].values()))["base"].values()))[1]
    lines = [
        "# Clicks on pages of MiniWoB++, from pixels",
        "",
        f"Share of held-out problems that one greedy click solves, {n} of each page, with Wilson's 95% interval. The best blind click "
        "reads the task and does not look at the page.",
        "",
        markdown(cells(result)),
        *how_measured(
            arguments,
            f"minutes of RL by seed, from the generated pages: {took}",
            "recipe: `configs/recipes/toy_pages.yaml`; `run.seed` and `toy.base_seed` as in the table",
            f"demonstrations: {DEMONSTRATIONS} episodes, the same for all seeds; {STEPS} steps of 32 rows, learning rate {RATE}, cosine",
            beside="; one thread a run; other programs beside it",
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-toy-pages"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--problems", type=int, default=400, help="of each page, for the best blind click")
    parser.add_argument("--set", nargs="*", default=["run.threads=1"], help="overrides for every run (default: one thread each)")
    parser.add_argument("--write", type=Path, help="Markdown page; the numbers go beside it as .json")
    args = parser.parse_args()
    from vlmrl import fs

    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"blind": {}, "seeds": {}}
    for seed in args.seeds:
        plain, after = out / f"rl-{seed}", out / f"taught-{seed}"
        run(command(seed, out, args.set), plain)
        run(command(seed, out, args.set, recipe=taught(out, demonstrate(out)), name="taught"), after)
        shares = {"base": played(plain, "base"), "rl": played(plain, "rl"), "sft": played(after, "sft"), "sft_rl": played(after, "rl")}
        result["seeds"][str(seed)] = {**shares, "minutes": minutes(plain)}
    for page in result["seeds"][str(args.seeds[0])]["base"]:
        result["blind"][page] = best_blind(*problems(page, args.problems, seed=0))
    text = document(result, f"python -m benchmarks.learning.toy_pages --seeds {' '.join(map(str, args.seeds))}")
    if args.write is not None:
        fs.mkdir(args.write.parent)
        fs.write_text(args.write, text)
        fs.write_text(args.write.with_suffix(".json"), json.dumps(result, sort_keys=True) + "\n")
    print(text)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
