"""A whole GRPO step of episodes of TRL's trainer and of ours, side by side: seconds, rollout, update, peak memory.

    python -m benchmarks.turns.vs_trl_turns --threads 1             4 and 8 turns, a screen of 64 visual tokens each, 8 attempts
    python -m benchmarks.turns.vs_trl_turns --device cuda --size 3b --screens 256 1024

The same random weights, world (`world.py`), prompts and answers of equal length. Sides: `trl` (`environment_factory`, pictures in
the results of a tool), `trl-vllm` (the same, its rollouts by vLLM in the trainer's process), `anew` and `kept` as in `turns.py`. Needs TRL:
pip install trl==1.16.0. Where vLLM is not installed, `trl-vllm` is left out. Writes docs/benchmarks/vs_trl_turns.md and .json.
"""

from __future__ import annotations

import argparse
import importlib.util

from benchmarks.common import Job, Result, need, publish, run_script
from benchmarks.turns.turns import cell_options, check, document, run

SIDES = ("trl", "trl-vllm", "anew", "kept")
EQUAL = (
    "Equal work: the same weights, world, first prompts and lengths on all sides; answers cannot end, as the same ids are suppressed on",
    "all sides. TRL 1.16 puts screenshots into turns (`GRPOTrainer._tool_call_loop` takes content parts from a tool); random weights call",
    "no tool, so `parse_response` is replaced by one that makes every answer a call. TRL writes no end token behind an answer that was cut",
    "off and ours does, one token per turn, which the counts give both sides. TRL: gradient checkpointing off, `beta` 0, loss `grpo`, the",
    "whole batch in one forward pass, otherwise its defaults. TRL's `rollout` holds cutting pictures into patches, ours the world's",
    "processes. `trl-vllm`: `use_vllm`, `colocate`, without the correction for the sampler's log-probs, which is one more forward pass.",
    "Pictures of a prompt are given to vLLM as one place each (TRL 1.16 gives it all places, and vLLM makes them again: trl#6294); on a",
    "CPU its weights are packed again behind every sync, and blocks have 32 tokens. Its `read` is what vLLM's meter said, its `rollout`",
    "holds bringing the weights to vLLM.",
    "",
)


def options(parser: argparse.ArgumentParser) -> None:
    cell_options(parser, turns=[4, 8])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=default_sides())


def default_sides() -> list[str]:
    """All, `trl-vllm` where vLLM is installed."""
    return [side for side in SIDES if side != "trl-vllm" or importlib.util.find_spec("vllm") is not None]


def worker(job: Job) -> Result:
    from benchmarks.step import workload
    from benchmarks.turns import ours, peer_trl

    if job["side"] == "prepare":
        return workload.prepare(job)
    return peer_trl.measure(job) if job["side"] in peer_trl.SIDES else ours.measure(job)


def main(args: argparse.Namespace) -> None:
    if {"trl", "trl-vllm"} & set(args.sides):
        need("trl", "--sides anew kept")
    if "trl-vllm" in args.sides:
        need("vllm", "--sides trl anew kept")
    store, cells = run(args, __file__)
    for cell in cells:
        check(store, cell, SIDES)
    pairs = [("trl", "kept"), ("trl-vllm", "kept"), ("trl", "trl-vllm"), ("trl", "anew"), ("anew", "kept")]
    publish(args.write, document(store, cells, "# A GRPO step of episodes: TRL and vlmrl", SIDES, pairs, EQUAL))


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)
