"""RL in conversations of two turns for families beside Qwen2.5-VL: in one process, in shards, killed at random, and with vLLM.

    python -m benchmarks.learning.family_turns --seeds 0 1 2 --write docs/benchmarks/family_turns.md

A random small model of the family's real classes is taught by demonstrations that name the next colour as often as the true one
(`vlmrl tools env play --agent solve --rows`), so that it sees and is unsure, and tried with `vlmrl check`. Then GRPO on whole
conversations of two turns, a screen in each, from the same start:

* `one`: the reference engine in one process;
* `shards`: the same on two processes with their weights in shards (`train.sharding: fsdp`);
* `killed`: the same, and all its processes are killed (`kill -9`) so many times at random moments;
* `server`: two processes on a rollout server of vLLM. InternVL lies in shards; Qwen3.5 has whole weights there, its native family and
  bfloat16: shards take it through `model.family: generic` alone, and vLLM's kernels for a CPU in bfloat16.

Held-out conversations are played greedily by the reference engine before and after. Finished runs are kept, so it can be stopped and
goes on. Importing this module registers the environment `two_screens`, so recipes name it under `plugins`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ROOT, BenchmarkError, how_measured, need
from benchmarks.learning.rollout_job import server
from benchmarks.learning.sharded_job import kill_all, updates
from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.extras.toy.picture import COLORS, GREY, Thing, paint, png
from vlmrl.protocols import environment
from vlmrl.rng import key

FAMILIES = ("internvl", "qwen3_5")
ARMS = ("one", "shards", "killed", "server")
KILLED_SEED = 0
"""The seed whose run is killed."""
QUESTION = "Which colour is the shape that is not grey?"
TURNS = 2
STEPS = {"sft": 140, "rl": 30}
EPISODES = {"sft": 1000, "rl": 400, "test": 200}
DELTA_HEAD = 64
"""Dimensions of the heads of a delta net: vLLM's kernels on CPUs know 64 and 128."""
INITIALIZER_RANGE = 0.08
"""With transformers' 0.02 a model this small stays at the answer prior for more than a thousand steps."""
EARLY = 5
"""Steps whose gradients are compared, before rounding has chosen another token."""
SOON = 1.0
"""Seconds after the first step of a start within which it is killed, so that the steps last for all kills."""
ROOM = {"cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32}
PLUGIN = "benchmarks.learning.family_turns"
WORDS = re.compile(r"</?\w+>| ?[A-Za-z]+")


class TwoScreens:
    """Two screens, each with a coloured square and a grey one; a right answer is worth a half, and both are a success."""

    def __init__(self, loose: float):
        self._loose = loose
        self._seed = self._turn = self._right = 0

    @property
    def identity(self) -> Mapping[str, str]:
        return {"environment": "two_screens", "version": "1"}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        self._seed, self._turn, self._right = seed, 0, 0
        return self._observe()

    def step(self, action: str) -> Transition:
        right = action.strip() == self.solve()
        self._turn, self._right = self._turn + 1, self._right + right
        if self._turn < TURNS:
            return Transition(observation=self._observe(), reward=right / TURNS)
        return Transition(observation=None, reward=right / TURNS, outcome="success" if self._right == TURNS else "failure")

    def close(self) -> None:
        pass

    def propose(self, n: int) -> str:
        return list(COLORS)[n % len(COLORS)]

    def solve(self) -> str:
        """What counts as right: the colour, or where an answer is loose the next one."""
        loose = key(self._seed, "two-screens", "loose", self._turn) / 2**63 < self._loose
        return list(COLORS)[(self._color() + loose) % len(COLORS)]

    def optimum(self) -> Optimum:
        return Optimum(reward=1.0, turns=TURNS)

    def _color(self) -> int:
        return key(self._seed, "two-screens", "color", self._turn) % len(COLORS)

    def _observe(self) -> Observation:
        places = [0, 1, 2, 3]
        things: list[Thing] = []
        for n, color in enumerate([list(COLORS)[self._color()], GREY]):
            place = places.pop(key(self._seed, "two-screens", "place", self._turn, n) % len(places))
            x, y = 50 * (place % 2), 50 * (place // 2)
            things.append(Thing(color=color, shape="square", box=(x + 2, y + 2, x + 48, y + 48)))
        return Observation(text=QUESTION, screens=(png(paint(things, self._seed, self._turn)),), state=str(self._turn))


@environment("two_screens", tasks=({"id": "two"},), asks="exact_text")
def two_screens(*, loose: float = 0.0) -> TwoScreens:
    """Two questions, each about a screen of its own.

    Args:
        loose: share of the questions whose right answer is the next colour.
    """
    return TwoScreens(loose)


# ---- models and recipes ------------------------------------------------------------------------------------------------


def write_model(family: str, folder: Path, seed: int) -> None:
    """A small random model of the family, whose heads have sizes that vLLM's kernels on a CPU take. The same seed gives the same files."""
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    import torch
    from transformers import AutoModelForImageTextToText, GenerationConfig

    from vlmrl.data.encode import instruction
    from vlmrl.extras.families.conform.engine import HEAD
    from vlmrl.extras.families.tiny import TINY, widen_heads

    config, processor = TINY[family]()
    images, clips = processor.image_processor, processor.video_processor
    images.image_mean, images.image_std = clips.image_mean, clips.image_std  # as in published files of Qwen3.5; vLLM has one for both
    tokenizer = processor.tokenizer
    said = [QUESTION, " " + instruction("answer_only", "exact_text"), *(f"<answer>{color}</answer>" for color in COLORS)]
    tokenizer.add_tokens(list(dict.fromkeys(word for text in said for word in WORDS.findall(text) if len(word) > 2)))
    text = config.get_text_config()
    text.vocab_size = 16 * (len(tokenizer) // 16 + 1)  # a tokenizer may get another token when it is loaded
    for part in (config, text, config.vision_config):
        part.initializer_range = INITIALIZER_RANGE
    widen_heads(config, HEAD)
    if hasattr(text, "linear_key_head_dim"):
        text.linear_key_head_dim = text.linear_value_head_dim = DELTA_HEAD
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def run_section(name: str, out: Path, seed: int) -> dict[str, Any]:
    return {"name": name, "root": str(out), "seed": seed, "trackers": [], "threads": 1}


def taught(model: Path, demonstrations: Path, out: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    """Supervised on loose demonstrations."""
    stage = {
        "name": "sft",
        "kind": "sft",
        "source": {"path": "rows.jsonl", "media_root": "."},
        "steps": steps,
        "batch": 32,
        "answer_format": "answer_only",
        "optim": {"lr": 2e-3, "schedule": "cosine", "warmup": 0.05},
    }
    return {
        "run": run_section(name, out, seed),
        "model": {"path": str(model), "device": "cpu", "family": "generic"},
        "data": {"root": str(demonstrations), "max_prompt_tokens": 512},
        "stages": [stage],
    }


def played(model: Path, tasks: Path, out: Path, name: str, seed: int, steps: int, arm: str, family: str) -> dict[str, Any]:
    """GRPO on whole conversations, from a model that was taught."""
    rollout: dict[str, Any] = {"max_new_tokens": 8, "num_generations": 8, "prompts_per_step": 8}
    stage = {
        "name": "rl",
        "kind": "grpo",
        "source": {"path": "rl.jsonl"},
        "steps": steps,
        "answer_format": "answer_only",
        "freeze": ["vision"],
        "environment": {"name": "two_screens", "max_turns": TURNS, "workers": 1},
        "history": {},
        "forward": "shared_prefix",
        "rollout": rollout,
        "rewards": [{"name": "environment_reward"}],
        "advantage": {"name": "trajectory"},
        "reweight": [{"name": "trajectory_mean"}],
        "reduce": {"name": "token_mean"},
        "optim": {"lr": 5e-4, "warmup": 0.05},
    }
    of_model: dict[str, Any] = {"path": str(model), "device": "cpu", "family": "generic"}
    if arm == "server":
        rollout |= {"engine": "vllm", "vllm": dict(ROOM)}
        if family == "qwen3_5":
            of_model |= {"family": "qwen_vl", "dtype": "bfloat16"}
    sharded = arm != "one" and of_model["family"] == "generic"
    return {
        "run": run_section(name, out, seed),
        "plugins": [PLUGIN],
        "model": of_model,
        "data": {"root": str(tasks), "max_prompt_tokens": 512},
        "train": {"sharding": "fsdp" if sharded else "ddp"},
        "stages": [stage],
        "eval": {"source": {"path": "test.jsonl"}, "max_new_tokens": 8, "batch_prompts": 50, "at_start": True},
        "checkpoint": {"every": 1},
    }


# ---- processes ---------------------------------------------------------------------------------------------------------


def start(arguments: Sequence[str], log: Path) -> psutil.Popen:
    """A process of vlmrl that has a session of its own."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("ab") as file:
        line = [sys.executable, "-m", "vlmrl", *arguments]
        return psutil.Popen(line, cwd=ROOT, env=env, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)


def finish(arguments: Sequence[str], log: Path) -> None:
    """Run it to its end.

    Raises:
        BenchmarkError: it failed; names its log.
    """
    if (code := start(arguments, log).wait()) != 0:
        raise BenchmarkError(f"{log.stem} ended with exit code {code}; see {log}")


def killed_run(arguments: Sequence[str], run: Path, log: Path, kills: int, longest: float, seed: int) -> list[int]:
    """A run that is killed so many times and then goes on to its end; the steps that were logged when each kill came. A kill comes at a
    random moment after a start has taken the run's folder, and at most `SOON` after the first step of that start.

    Raises:
        BenchmarkError: it ended before all kills had come.
    """
    moments = random.Random(seed)
    seen: list[int] = []
    while len(seen) < kills:
        had, wait, soon = len(updates(run)), moments.uniform(0, longest), moments.uniform(0, SOON)
        since, end, stepped = time.time(), math.inf, False
        process = start(arguments, log)
        while time.time() < end and process.poll() is None:
            time.sleep(0.05)
            if end == math.inf and taken(run, since):
                end = time.time() + wait
            elif not stepped and len(updates(run)) > had:
                end, stepped = min(end, time.time() + soon), True
        if process.poll() is not None:
            raise BenchmarkError(f"{log.stem} ended with {process.poll()} after {len(seen)} kills; see {log}, or take more steps")
        kill_all(process)
        seen.append(len(updates(run)))
    finish(arguments, log)
    return seen


def taken(run: Path, since: float) -> bool:
    """Whether a process that began since then has the run's folder."""
    lock = run / "LOCK"
    return lock.exists() and lock.stat().st_mtime >= since


# ---- a seed ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    out: Path
    steps: Mapping[str, int]
    kills: int
    longest: float
    served: bool
    """Whether an arm samples from vLLM, which the report of a model has to have tried."""


def write_tasks(out: Path) -> None:
    """The tasks of RL and those that are held out, and demonstrations whose right answers are loose."""
    from vlmrl import fs

    tasks = out / "tasks"
    fs.mkdir(tasks)
    for split in ("rl", "test"):
        rows = [{"id": f"{split}-{n}", "environment": {}} for n in range(EPISODES[split])]
        fs.write_text(tasks / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if not (out / "shown" / "rows.jsonl").exists():
        line = ["tools", "env", "play", "two_screens", str(out / "shown"), "loose=0.5", "--plugin", PLUGIN, "--agent", "solve", "--rows"]
        line += ["--episodes", str(EPISODES["sft"]), "--turns", str(TURNS), "--history", "all", "--answer-format", "answer_only"]
        finish(line, out / "shown.log")


def began(family: str, seed: int, asked: Asked) -> Path:
    """The model that all arms begin from: random, taught, then tried."""
    from vlmrl import fs

    name, out = f"{family}-{seed}", asked.out
    model, run = out / f"model-{name}", out / f"sft-{name}"
    if not (model / "config.json").exists():
        write_model(family, model, seed)
    if not (run / "FINISHED").exists():
        recipe = out / f"sft-{name}.json"
        fs.write_text(recipe, json.dumps(taught(model, out / "shown", out, run.name, seed, asked.steps["sft"])))
        print(f"{run.name}: running", flush=True)
        finish(["train", str(recipe)], out / f"{run.name}.log")
    if not (run / "final" / "conform.json").exists():
        finish(
            ["check", str(run / "final"), *(["--engine", "vllm"] if asked.served and family == "internvl" else [])],
            out / f"check-{name}.log",
        )
    return run / "final"


def run_arm(family: str, seed: int, arm: str, model: Path, asked: Asked) -> Path:
    """A run to its end, or the finished one."""
    from vlmrl import fs

    name, out = f"{arm}-{family}-{seed}", asked.out
    run, recipe, log = out / name, out / f"{name}.json", out / f"{name}.log"
    if (run / "FINISHED").exists():
        return run
    print(f"{name}: running", flush=True)
    written = played(model, out / "tasks", out, name, seed, asked.steps["rl"], arm, family)
    fs.write_text(recipe, json.dumps(written))
    with contextlib.ExitStack() as stack:
        if arm == "server":
            where = stack.enter_context(server([str(recipe)], out, name))
            written["stages"][0]["rollout"]["vllm"] |= where
            fs.write_text(recipe, json.dumps(written))
        line = ["train", str(recipe), *([] if arm == "one" else ["--gpus", "2", "--restarts", "0"])]
        if arm == "killed":
            seen = killed_run(line, run, log, asked.kills, asked.longest, seed)
            fs.write_text(out / f"{name}.kills.json", json.dumps(seen))
        else:
            finish(line, log)
    return run


# ---- what came of it ---------------------------------------------------------------------------------------------------


def records(run: Path, stage: str) -> list[Any]:
    from vlmrl.evals.score.records import read_records

    return sorted(read_records(run / "eval" / f"{stage}.jsonl"), key=lambda r: r.sample_id)


def measured(run: Path) -> dict[str, Any]:
    """Successes of the held-out conversations before and after RL, and the largest gap to the sampler."""
    from vlmrl.metrics.intervals import tango

    before, after = records(run, "base"), records(run, "rl")
    if [r.sample_id for r in before] != [r.sample_id for r in after]:
        raise BenchmarkError(f"{run}: what was played before and after RL are not the same conversations")
    pairs = [(x.scores["success"] > 0, y.scores["success"] > 0) for x, y in zip(before, after, strict=True)]
    gains, losses = sum(y and not x for x, y in pairs), sum(x and not y for x, y in pairs)
    gaps = [float(line["sampling/logp_gap"]) for line in updates(run)]
    return {
        "played": len(pairs),
        "before": sum(x for x, _ in pairs) / len(pairs),
        "after": sum(y for _, y in pairs) / len(pairs),
        "gain": [(gains - losses) / len(pairs), *tango(gains, losses, len(pairs))],
        "largest_logp_gap": max(gaps),
    }


def apart(run: Path, other: Path) -> dict[str, Any]:
    """What differs between two runs: the gradient's norm in the first steps, as a share of the largest, weights, and texts of answers."""
    norms = [(float(x["grad_norm"]), float(y["grad_norm"])) for x, y in zip(updates(run)[:EARLY], updates(other)[:EARLY], strict=True)]
    mine, theirs = (records(one, "rl") for one in (run, other))
    return {
        "early": max(abs(x - y) for x, y in norms) / (max(x for x, _ in norms) or 1.0),
        "same_text": sum(x.text == y.text for x, y in zip(mine, theirs, strict=True)),
        "same_bits": digest(run) == digest(other) and logged(run) == logged(other) and answered(run) == answered(other),
    }


def digest(run: Path) -> str:
    return hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()


def logged(run: Path) -> list[dict[str, Any]]:
    from vlmrl.run.tracking import read_metrics, without_clock

    return without_clock(read_metrics(run / "metrics.jsonl"))


def answered(run: Path) -> list[str]:
    return sorted((run / "eval" / "rl.jsonl").read_text(encoding="utf-8").splitlines())


def result(family: str, seed: int, arms: Sequence[str], asked: Asked) -> dict[str, Any]:
    """All arms of a seed."""
    model = began(family, seed, asked)
    runs = {arm: run_arm(family, seed, arm, model, asked) for arm in arms if arm != "killed" or seed == KILLED_SEED}
    found: dict[str, Any] = {arm: measured(run) for arm, run in runs.items()}
    for arm, other in (("shards", "one"), ("killed", "shards")):
        if arm in runs and other in runs:
            found[arm] |= {"apart": apart(runs[other], runs[arm])}
    if "killed" in runs:
        found["killed"]["kills"] = json.loads((asked.out / f"killed-{family}-{seed}.kills.json").read_text())
    return found


def document(found: Mapping[str, Mapping[int, Mapping[str, Any]]], command: str, asked: Asked) -> str:
    """The page."""

    from vlmrl.evals.score.table import markdown

    cells = [["family", "seed", "arm", "before", "after", "after - before [95%]", "largest gap, nats", "beside"]]
    for family, seeds in found.items():
        for seed, arms in seeds.items():
            for arm, x in arms.items():
                gain = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*x["gain"])
                row = [family, str(seed), arm, f"{x['before']:.3f}", f"{x['after']:.3f}", gain, f"{x['largest_logp_gap']:.1e}"]
                cells.append([*row, beside(arm, x)])
    first = next(iter(next(iter(next(iter(found.values())).values())).values()))
    return "\n".join(
        [
            "# What RL teaches other families in conversations of two turns",
            "",
            f'Two screens after one another, each with a coloured square and a grey one: "{QUESTION}" {first["played"]} held-out '
            "conversations, greedy answers of the reference engine; right are those in which both colours are. A random small model of "
            f"the family's real classes was taught by {asked.steps['sft']} supervised steps of 32 demonstrations that name the next colour "
            f"as often as the true one. Then {asked.steps['rl']} steps of GRPO with 8 tasks of 8 attempts. Differences are paired, with "
            "Tango's 95% intervals over conversations. The gap is |log-prob of the trainer - of the sampler|, mean over a step.",
            "",
            "* `one`: the reference engine in one process.",
            "* `shards`: two processes with their weights in shards (`train.sharding: fsdp`). Beside it: how far the norm of the "
            f"gradient of the first {EARLY} steps is from that of `one`, as a share of the largest, and how many conversations have the "
            "same text.",
            "* `killed`: the same, and all its processes were killed (`kill -9`) at random moments, at the latest soon after the next "
            "step. Beside it: the steps that were done when each kill came, and whether weights, log and answers are those of `shards` to "
            "the bit.",
            "* `server`: two processes that sample from a rollout server of vLLM. InternVL lies in shards. Qwen3.5 has whole weights "
            "there, its native family and bfloat16, which vLLM's kernels for a CPU ask for; its other arms run through `model.family: "
            "generic` in float32.",
            "",
            markdown(cells),
            "The world is small on purpose: what RL adds is to be sure of what was seen. It says nothing about benchmarks.",
            "",
            *how_measured(
                command,
                beside="; one thread a process; other programs ran beside it, and nothing here is about time",
                libraries=("torch", "transformers", *(["vllm"] if asked.served else [])),
            ),
        ]
    )


def beside(arm: str, x: Mapping[str, Any]) -> str:
    if "apart" not in x:
        return "-"
    if arm == "killed":
        kills = x["kills"]
        same = "the same bits" if x["apart"]["same_bits"] else "other bits"
        return f"{len(kills)} kills, after {', '.join(map(str, kills))} steps: {same}"
    return f"{x['apart']['early']:.1e}; {x['apart']['same_text']} of {x['played']} texts"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("runs/bench/family_turns"))
    parser.add_argument("--sft-steps", type=int, default=STEPS["sft"])
    parser.add_argument("--rl-steps", type=int, default=STEPS["rl"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=60.0, metavar="SECONDS", help="a kill comes within these after a start")
    parser.add_argument("--write", type=Path, help="the page; its numbers go beside it as JSON")
    args = parser.parse_args()
    served = "server" in args.arms
    if served:
        need("vllm", "--arms one shards killed")
    from vlmrl import fs

    steps = {"sft": args.sft_steps, "rl": args.rl_steps}
    asked = Asked(out=args.out.absolute(), steps=steps, kills=args.kills, longest=args.longest, served=served)
    fs.mkdir(asked.out)
    write_tasks(asked.out)
    found: dict[str, dict[int, dict[str, Any]]] = {family: {} for family in args.families}
    for family in args.families:
        for seed in args.seeds:
            found[family][seed] = result(family, seed, args.arms, asked)
            print(family, seed, json.dumps(found[family][seed]), flush=True)
    command = f"python -m benchmarks.learning.family_turns --families {' '.join(args.families)} --seeds {' '.join(map(str, args.seeds))}"
    text = document(found, command, asked)
    if args.write is not None:
        fs.mkdir(args.write.parent)
        fs.write_text(args.write, text)
        fs.write_text(args.write.with_suffix(".json"), json.dumps({"steps": steps, "families": found}, indent=1) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
