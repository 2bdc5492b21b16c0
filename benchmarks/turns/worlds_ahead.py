"""What worlds that begin ahead of need save: steps of episodes with `environment.ahead` off and on, the same recipe and seeds in turn.

    python -m benchmarks.turns.worlds_ahead --environment miniwob pages=click explain=false --write docs/benchmarks/worlds_ahead.md

Each side is a whole run of `vlmrl train` in a process of its own: a fresh tiny model, 8 groups of 8 attempts a step, generated together.
`--temperature` says how much its attempts differ: those that do the same are one, with `ahead`. Sides take turns. Of every step behind
the first: seconds of the step, of its rollout and of the waiting for worlds, CPU seconds of the trainer and of all processes below it
(workers, browsers), and for each attempt how long its first screen took from asking to having. The runs must end with the same weights and
the same log but for its clocks; it says so, or fails.

`--alone WAY` does without a model: one step of `--groups` groups, whose attempts click somewhere else each (`apart`) or at one place
(`alike`), with worlds that begin when they are asked for (`off`), with the first screen, or had `--head` seconds before it (`-ahead`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, how_measured

SIDES = {"off": "when they are asked for", "on": "ahead of need"}
GROUPS = ATTEMPTS = 8
WAYS = ("off", "apart", "alike", "apart-ahead", "alike-ahead")
TICKS = os.sysconf("SC_CLK_TCK")


def recipe(args: argparse.Namespace, root: Path, side: str) -> dict[str, Any]:
    """One stage of GRPO over attempts."""
    import yaml

    arguments = {name: yaml.safe_load(value) for name, value in (one.split("=", 1) for one in args.arguments)}
    stage = {
        "name": "rl",
        "kind": "grpo",
        "source": {"path": "tasks.jsonl"},
        "steps": args.steps + 1,
        "answer_format": "answer_only",
        "environment": {"name": args.environment, "max_turns": args.turns, "workers": args.workers, "ahead": side == "on"} | arguments,
        "history": {"screens": 1, "actions": False},
        "rollout": {
            "num_generations": ATTEMPTS,
            "prompts_per_step": GROUPS,
            "generation_batch_size": GROUPS,
            "max_new_tokens": args.tokens,
            "temperature": args.temperature,
        },
        "rewards": [{"name": "environment_reward"}, {"name": "repetition"}],
        "advantage": {"name": "trajectory"},
        "optim": {"lr": 1.0e-4},
    }
    return {
        "run": {"name": side, "root": str(root), "trackers": []},
        "model": {"path": str(root / "model")},
        "media": {"max_pixels": 37632},
        "data": {"root": str(root), "max_prompt_tokens": 2048},
        "checkpoint": {"every": 1000},
        "stages": [stage],
        "eval": {},
    }


def below(pid: int) -> float:
    """CPU seconds of all processes below one, those included that have ended and were waited for."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append((int(entry.name), sum(map(int, fields[11:15]))))
    total, waiting = 0, [pid]
    while waiting:
        for child, ticks in children.get(waiting.pop(), []):
            total += ticks
            waiting.append(child)
    return total / TICKS


def train(file: str) -> None:
    """In a process of its own: run a recipe, and write beside it what the log does not have."""
    from vlmrl import cli
    from vlmrl.extras.agents.ahead import Ahead
    from vlmrl.extras.agents.turns import EpisodeCollector

    kept: list[dict[str, Any]] = []
    first, learn, of_step = Ahead.firsts, Ahead.learn, EpisodeCollector.measured

    def firsts(self: Ahead, groups: Sequence[Sequence[Any]]) -> Any:
        began = time.perf_counter()
        waits: dict[Any, float] = {}
        for number, group in enumerate(groups):
            for k, episode in enumerate(group):
                episode.reset = watched(episode.reset, (number, k), began, waits)
        out = first(self, groups)
        # who is shown another's screen has it when that one has
        waited = [waits.get((number, k), waits[number, 0]) for number, group in enumerate(groups) for k in range(len(group))]
        kept.append({"waits": waited})
        return out

    def watched(reset: Any, name: Any, began: float, waits: dict[Any, float]) -> Any:
        def asked() -> Any:
            made = reset()
            made.add_done_callback(lambda _: waits.update({name: time.perf_counter() - began}))
            return made

        return asked

    def learned(self: Ahead, groups: Sequence[Sequence[Any]]) -> None:
        kept[-1]["worlds_apart"] = sum(len({id(one) for one in group}) for group in groups)
        learn(self, groups)

    def measured(self: EpisodeCollector, notes: Mapping[str, float], *, step: int) -> Mapping[str, float]:
        kept[-1] |= {"processes": below(os.getpid()), "trainer": time.process_time()}
        return of_step(self, notes, step=step)

    Ahead.firsts, Ahead.learn, EpisodeCollector.measured = firsts, learned, measured
    sys.argv = ["vlmrl", "train", file]
    try:
        cli.main()
    finally:
        Path(file).with_suffix(".steps.json").write_text(json.dumps(kept))


def run(args: argparse.Namespace, root: Path, side: str) -> dict[str, Any]:
    """One side: its steps behind the first, and what it came to.

    Raises:
        BenchmarkError: the run failed.
    """
    import yaml

    from vlmrl.run.tracking import read_metrics, without_clock

    file, folder = root / f"{side}.yaml", root / side
    file.write_text(yaml.safe_dump(recipe(args, root, side)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.turns.worlds_ahead", "--train", str(file)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"side '{side}' ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "environment/attempts" in line]
    kept = json.loads(file.with_suffix(".steps.json").read_text())
    steps = [
        {name: line[f"time/{name}"] for name in ("step_total", "rollout", "environment", "sampling", "forward_backward")}
        | {name: line[f"work/{name}"] for name in ("worlds_begun", "worlds_ahead", "worlds_unused", "screens_shared")}
        | {"first_screen": statistics.median(now["waits"]), "worlds_apart": now["worlds_apart"]}
        | {name: now[name] - before[name] for name in ("processes", "trainer")}
        for line, now, before in zip(lines[1:], kept[1:], kept, strict=False)
    ]
    weights = hashlib.sha256((folder / "final/model.safetensors").read_bytes()).hexdigest()
    return {"steps": steps, "weights": weights, "log": without_clock(lines), "faults": sum(line["environment/faults"] for line in lines)}


def alone(args: argparse.Namespace) -> str:
    """One way: a row of seconds for first screens and for steps, CPU seconds of workers and browsers, worlds begun, digest of what came."""
    from types import SimpleNamespace
    from unittest import mock

    import yaml

    from vlmrl.extras.agents import episodes
    from vlmrl.extras.agents.find import open_pool
    from vlmrl.extras.agents.pool import PoolSettings

    alike = args.alone.startswith("alike")
    arguments = {name: yaml.safe_load(value) for name, value in (one.split("=", 1) for one in args.arguments)}
    tasks = [({}, seed) for seed in range(args.groups)]
    came: list[tuple[Any, ...]] = []
    with open_pool(args.environment, arguments, settings=PoolSettings(workers=args.workers, ahead=args.alone != "off")) as pool:
        first = [pool.episode({}, 1000 + number, worker=number) for number in range(args.workers)]
        for asked in [episode.reset() for episode in first]:  # starts workers and browsers
            asked.result()
        for episode in first:
            episode.close()
        pool.ahead.most, pool.ahead.worlds = ATTEMPTS * args.groups, 1 if alike else ATTEMPTS
        if args.alone.endswith("ahead"):
            pool.ahead.foresee([(task, seed, ATTEMPTS) for task, seed in tasks])
            time.sleep(args.head)
        cpu, began = below(os.getpid()), time.perf_counter()
        groups = [pool.ahead.take(task, seed, ATTEMPTS) for task, seed in tasks]
        shown = pool.ahead.firsts(groups)
        screens = time.perf_counter()
        each: list[Any] = []
        for group, of_group in zip(groups, shown, strict=True):
            for k, (own, (_, episode)) in enumerate(zip(group, of_group, strict=True)):
                text = json.dumps({"action": "click", "coordinate": [500 if alike else 100 + 100 * k, 600]})
                each.append((SimpleNamespace(own=own, episode=episode), SimpleNamespace(text=text)))
        with mock.patch.object(episodes, "_record", lambda one, answer, reply: came.append((reply.fault, reply.reward, reply.outcome))):
            table: Any = SimpleNamespace(action=str)
            episodes._act(table, each)
        ended = time.perf_counter()
        cells = [f"{screens - began:.2f}", f"{ended - screens:.2f}", f"{below(os.getpid()) - cpu:.2f}", str(pool.begun() - args.workers)]
    return " | ".join([args.alone, *cells, hashlib.sha256(repr(came).encode()).hexdigest()[:8]])


ROWS = {
    "step_total": "a step, s",
    "rollout": "its rollout, s",
    "environment": "of that waiting for worlds, s",
    "sampling": "of that sampling, s",
    "forward_backward": "its update, s",
    "first_screen": "an attempt's first screen, asked to had, s",
    "processes": "CPU of workers and browsers, s",
    "trainer": "CPU of the trainer, s",
    "worlds_apart": "worlds in which somebody acted",
    "worlds_begun": "worlds that began",
    "worlds_ahead": "of them before they were asked for",
    "worlds_unused": "begun or about to begin, and not wanted",
    "screens_shared": "attempts that were shown another's first screen",
}


def page(args: argparse.Namespace, found: Mapping[str, Sequence[Mapping[str, Any]]], load: Sequence[float]) -> str:
    """The table and how it was measured."""
    from vlmrl.evals.score.table import markdown

    cells = [["median of a step", *(f"worlds begin {told}" for told in SIDES.values()), "ratio"]]
    for name, told in ROWS.items():
        off, on = (statistics.median(step[name] for run in found[side] for step in run["steps"]) for side in SIDES)
        cells.append([told, f"{off:.3g}", f"{on:.3g}", f"{off / on:.2f}" if on and off else ""])
    n = args.steps * args.repeats
    numbers = ("temperature", "turns", "workers", "tokens", "steps", "repeats")
    given = " ".join([args.environment, *args.arguments, *(f"--{name} {getattr(args, name):g}" for name in numbers)])
    at = f"; load {load[0]:.1f} at the start and {load[1]:.1f} at the end"
    measured = "\n".join(how_measured(f"python -m benchmarks.turns.worlds_ahead --environment {given}", beside=at)[2:])
    return f"""## {args.environment} at temperature {args.temperature:g}

{GROUPS} groups of {ATTEMPTS} attempts a step, at most {args.turns} turns, {args.workers} workers, answers of at most {args.tokens} tokens,
a fresh tiny model (`vlmrl.extras.toy.model`). Medians over {n} steps of each side: {args.repeats} runs of {args.steps + 1} steps in turn,
without the first step. All runs ended with the same weights and the same log but for its clocks.

{markdown(cells)}

{measured}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", nargs="+", default=["miniwob", "pages=click", "explain=false"], help="name, then NAME=VALUE")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4, help="measured, behind one that is not")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", type=Path, help="page to which the section is added")
    parser.add_argument("--alone", choices=WAYS, help="one way, without a model")
    parser.add_argument("--groups", type=int, default=2, help="with --alone")
    parser.add_argument("--head", type=float, default=8.0, help="with --alone WAY-ahead")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train)
        return
    args.environment, *args.arguments = args.environment
    if args.alone:
        print(alone(args))
        return
    from vlmrl.extras.toy.kinds import tokenizer_corpus
    from vlmrl.extras.toy.model import build_model

    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    began = os.getloadavg()[0]
    for _ in range(args.repeats):
        for side in SIDES:
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder)
                build_model(root / "model", seed=0, corpus=tokenizer_corpus("gui"))
                rows = [json.dumps({"id": f"task-{n}", "environment": {}}) for n in range(64)]
                (root / "tasks.jsonl").write_text("\n".join(rows) + "\n")
                found[side].append(run(args, root, side))
                for step in found[side][-1]["steps"]:
                    print(side, {name: round(value, 3) for name, value in step.items()}, flush=True)
    ends = [(one["weights"], one["log"], one["faults"]) for runs in found.values() for one in runs]
    if any(one != ends[0] for one in ends) or ends[0][2]:
        raise BenchmarkError(f"the runs do not end alike, or had faults: {[(one[0][:12], one[2]) for one in ends]}")
    text = page(args, found, (began, os.getloadavg()[0]))
    print(text)
    if args.write:
        from vlmrl import fs

        fs.write_text(args.write, (args.write.read_text() + "\n" if args.write.exists() else "") + text)


if __name__ == "__main__":
    main()
