"""A whole training step, from the sampler's plan to the weight update, with each engine that a recipe can name.

A part of `rollout.py`. Every side is a process of its own; the step is that of `step/ours.py`, which the comparison with TRL measures too.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.common import Job, Result, Store, median_range, show
from benchmarks.rollout.programs import axes_of, media_of

SIDES = ("hf", "vllm")
LAYOUT = "shared_prefix"
MICROBATCH = 16384
"""Tokens of a micro-batch at most."""


def cells_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    more = {"batch": args.batch, "vocabulary": args.vocabulary_rows, "vllm_memory": args.vllm_memory}
    return [{"part": "steps"} | axes | more for axes in axes_of(args)]


def worker(job: Job) -> Result:
    from benchmarks.step import ours

    settings = job["settings"] | {"max_tokens_per_microbatch": MICROBATCH}
    return ours.measure({"side": LAYOUT, "cell": job["cell"] | {"engine": job["side"]}, "settings": settings})


def lines(results: list[Result], store: Store) -> list[str]:
    del store
    return [
        show("Whole steps: plan, rollouts, rewards, update", table_of(results)),
        "Everything trains, the tower included, so vLLM is sent all weights in each step: that is within its rollout.",
    ]


def table_of(results: list[Result]) -> list[list[str]]:
    """A row per cell and side; `times hf` is of the medians."""
    rows = [["medium, prompt x G x answer, prompts", "side", "s / step", "of it rollout, s", "of it update, s", "times hf"]]
    cells = [dict(cell) for cell in dict.fromkeys(tuple(r["cell"].items()) for r in results)]
    for cell in cells:
        name = f"{cell['kind']}, {cell['prompt']} x {cell['group']} x {cell['completion']}, {cell['batch']}"
        of = {side: [r for r in results if r["cell"] == cell and r["side"] == side and "failed" not in r] for side in SIDES}
        for side, found in of.items():
            if not found:
                continue
            seconds, rollout, update = ([s for r in found for s in r[part]] for part in ("seconds", "rollout", "update"))
            own = [s for r in of["hf"] for s in r["seconds"]]
            ratio = f"{statistics.median(seconds) / statistics.median(own):.2f}" if own else "-"
            rows.append([name, side, median_range(seconds), median_range(rollout), median_range(update), ratio])
    return rows


__all__ = ["SIDES", "cells_of", "lines", "media_of", "worker"]
