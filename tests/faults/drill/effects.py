"""Areas 5 to 7: rewards that misbehave, numbers at their limits, memory and time of long runs and many rows."""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

from safetensors.torch import load_file, save_file

from tests.faults.drill.result import CODES, Drill, Result, judge, run
from tests.support import runs
from vlmrl.data.source import read_source
from vlmrl.run.tracking import read_metrics

REWARDS, NUMBERS, LOAD = "5 rewards", "6 numbers", "7 load, leak"
Config = dict[str, Any]
BAD_REWARDS = ["hang", "spin", "raise", "exit", "segfault", "nan", "inf", "huge", "none", "short", "text", "bool", "generator", "equal"]
WARNED = {"none", "equal"}
"""A run may go on with these, but not without a word."""
CONFIG, DATA, NUMERICS = {64}, {65}, {70}


def _alone(drill: Drill, name: str, steps: int = 3, **stage: Any) -> Config:
    """The second stage by itself, without evaluations: short."""
    config = runs.small_config(*drill.files, drill.root(name), **stage)
    config["stages"] = config["stages"][1:]
    config["stages"][0]["steps"] = steps
    config["eval"] = {}
    config["plugins"] = ["tests.support.plugin_rewards", "tests.support.drill_plugin"]
    return config


def rewards(drill: Drill) -> Iterator[Result]:
    """A reward that goes wrong after its first calls, in a run: counted or refused; no wrong score, and no silence where none is left."""
    kinds = ["segfault", "nan", "huge", "none", "raise"] if drill.quick else BAD_REWARDS
    for kind in kinds:
        columns = [{"name": "drill_reward", "kind": kind}, {"name": "format", "weight": 0.1}]
        if kind in WARNED:
            columns = columns[:1]
        config = _alone(
            drill, f"reward-{kind}", steps=24 if kind == "equal" else 6, rewards=columns, reward_workers={"count": 1, "deadline": 2.0}
        )
        config["stages"][0]["rollout"] |= {"prompts_per_step": 2, "generation_batch_size": 2, "num_generations": 2, "max_new_tokens": 6}
        ended = run(config)
        found = judge(REWARDS, kind, ended, config, None, codes=CONFIG | DATA | NUMERICS)
        if found.verdict == "right" and kind in WARNED and "warning" not in ended.said:
            found = Result(area=REWARDS, case=kind, verdict="silent", note="the run ended with 0 and without a warning")
        elif found.verdict == "right" and kind not in (*WARNED, "huge"):
            faults = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if any("drill_reward/" in key for key in line)]
            verdict = "right" if faults else "silent"
            found = Result(area=REWARDS, case=kind, verdict=verdict, note="ended with 0; its faults are in no line of metrics.jsonl")
        elif found.verdict == "right" and kind == "huge":
            lines = read_metrics(runs.run_dir(config) / "metrics.jsonl")
            if any(abs(value) == float("inf") for line in lines for value in line.values() if isinstance(value, float)):
                found = Result(area=REWARDS, case=kind, verdict="silent", note="ended with 0; metrics are infinite")
        yield found


def _changed(config: Config, path: str, value: Any) -> Config:
    *parents, last = path.split(".")
    place: Any = config
    for part in parents:
        place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
    place[last] = value
    return config


def numbers(drill: Drill) -> Iterator[Result]:
    """Values at the limits of what a recipe can say, gradients and weights that are not finite."""
    stage = "stages.0"
    cases: list[tuple[str, str, Any, set[int]]] = [
        ("one loss is NaN", f"{stage}.loss", {"name": "drill_loss", "kind": "nan"}, set()),
        ("every loss is infinite", f"{stage}.loss", {"name": "drill_loss", "kind": "inf", "at": 0, "times": 10**9}, NUMERICS),
        ("bfloat16", "model.dtype", "bfloat16", set()),
        ("learning rate 0", f"{stage}.optim.lr", 0.0, set()),
        ("learning rate 1e6", f"{stage}.optim.lr", 1e6, NUMERICS),
        ("answers of one token", f"{stage}.rollout.max_new_tokens", 1, set()),
        ("temperature 1e-6", f"{stage}.rollout.temperature", 1e-6, set()),
        ("temperature 1e6", f"{stage}.rollout.temperature", 1e6, set()),
        ("top_p 1e-9", f"{stage}.rollout.top_p", 1e-9, set()),
        ("prompts that are too long", "data.max_prompt_tokens", 8, DATA),
        ("micro-batches of one token", f"{stage}.max_tokens_per_microbatch", 1, set()),
    ]
    cases += [(f"bfloat16, {name}", "model.prefix_backend", name, set()) for name in ("dense", "merge", "two_call")]
    for number, (name, path, value, codes) in enumerate(cases[: drill.choose(3, 100)]):
        config = _changed(_alone(drill, f"number-{number}", steps=6 if codes else 3), path, value)
        if name.startswith("bfloat16, "):
            config["model"]["dtype"] = "bfloat16"
        found = judge(NUMBERS, name, run(config), config, None, codes=codes)
        if found.verdict == "right" and name == "every loss is infinite":
            found = Result(area=NUMBERS, case=name, verdict="silent", note="ended with 0")
        yield found
    from tests.support.drill_plugin import spoil  # registers methods, so only where the drill runs

    for value in (float("nan"),) if drill.quick else (float("nan"), 1e30):
        config = _alone(drill, f"weights-{value}")
        model = drill.root(f"model-{value}") / "model"
        shutil.copytree(drill.files[0], model)
        save_file(spoil(load_file(model / "model.safetensors"), value), model / "model.safetensors", metadata={"format": "pt"})
        config["model"]["path"] = str(model)
        found = judge(NUMBERS, f"a weight is {value}", run(config), config, None, codes=NUMERICS | CODES)
        if found.verdict == "right" and value != value:
            found = Result(area=NUMBERS, case=f"a weight is {value}", verdict="silent", note="ended with 0")
        yield found


def load(drill: Drill) -> Iterator[Result]:
    """Memory over many steps, and time to read rows: neither may grow faster than what it is for."""
    steps = drill.choose(20, 120)
    config = _alone(drill, "leak", steps=steps)
    config["stages"][0]["rollout"] |= {"prompts_per_step": 2, "num_generations": 2, "max_new_tokens": 4, "generation_batch_size": 2}
    config["checkpoint"] = {"every": 10}
    found = judge(LOAD, f"{steps} steps", run(config, timeout=1200), config, None, codes=set())
    if found.verdict == "right":
        lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "memory/peak_rss" in line]
        early, late = lines[len(lines) // 2]["memory/peak_rss"], lines[-1]["memory/peak_rss"]
        verdict = "right" if late <= 1.05 * early else "silent"
        found = Result(area=LOAD, case=f"{steps} steps", verdict=verdict, note=f"{early:.0f} MiB half-way, {late:.0f} MiB at the end")
    yield found
    line = (drill.files[1] / "train.jsonl").read_text().splitlines()[0]
    seconds: list[float] = []
    for count in (2_000, 8_000):
        path = drill.folder / f"rows-{count}.jsonl"
        row = json.loads(line)
        path.write_text("".join(json.dumps(copy.copy(row) | {"id": f"r{n}"}) + "\n" for n in range(count)))
        began = time.process_time()
        read_source(path, media_root=".")
        seconds.append(time.process_time() - began)
    verdict = "right" if seconds[1] < 10 * seconds[0] else "silent"
    yield Result(area=LOAD, case="four times the rows", verdict=verdict, note=f"{seconds[1] / seconds[0]:.1f} times the seconds")
