"""Experts that sampling and update choose otherwise, and what replaying them (`rollout.router_replay`) does to the log-probs.

    python -m benchmarks.rollout.router_flips
    python -m benchmarks.rollout.router_flips --families qwen3_vl_moe --dtype float32 --tokens 8
    .venv-vllm/bin/python -m benchmarks.rollout.router_flips --engine vllm

A random tiny model of each family answers prompts with a picture or a clip, and the same weights compute the log-probs of its answers in
each layout, once with the experts that sampling took and once with their own. Flips are calls of a router that would choose another set
of experts; with replay the layers before took those of sampling. With vLLM there are pictures alone, and heads of a size that it
has kernels for. Prints a table of Markdown.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

FAMILIES = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "gemma4_moe")
OF_VLLM = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe")
LAYOUTS = ("repeat", "fork", "shared_prefix")
HEAD = ("family", "layout", "flips", "gap: mean", "worst", "flips, replayed", "gap: mean", "worst")


WIDE = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
"""Of delta nets, for vLLM's kernels on CPUs."""


def opened(family: str, folder: Path, *, dtype: str, prompts: int, engine: str = "hf") -> Any:
    """A tiny model with a world of pictures and clips."""
    from tests.support.given import load_given, make_model, make_rows
    from vlmrl.extras.families.conform.engine import HEAD
    from vlmrl.extras.families.tiny_parts import DELTA
    from vlmrl.policy.load import load_policy
    from vlmrl.types import PARTS

    world = make_rows(folder / "world", video=engine == "hf", train=prompts)
    with mock.patch.dict(DELTA, WIDE if engine == "vllm" else {}):
        model = make_model(family, folder / "model", head=HEAD if engine == "vllm" else None)
    given = load_given(model, world)
    return dataclasses.replace(given, policy=load_policy(str(model), given.bundle, device="cpu", dtype=dtype, trains=PARTS))


@contextmanager
def vllm(given: Any, model: Path, dtype: str) -> Iterator[Any]:
    """An engine that holds the weights."""
    from tests.support.vllm_core import core
    from vlmrl.extras.vllm.engine import VllmEngine, keeps_states

    shares = not keeps_states(given.policy.model.config)
    running = core(model, given.policy, dtype=dtype, in_parts=False, shares=shares, routes=True)
    try:
        engine = VllmEngine(running, given.policy, given.store)
        engine.sync()
        yield engine
    finally:
        running.close()


def measured(given: Any, *, prompts: int, answers: int, tokens: int, engine: Any = None) -> list[tuple[str, list[float]]]:
    """Per layout: share of flips, mean and worst gap in nats without replay, and the same with it.

    Args:
        engine: who samples; None: the policy itself.
    """
    import torch

    from vlmrl import rng
    from vlmrl.extras.families import routing
    from vlmrl.extras.families.engine_fork import ForkEngine
    from vlmrl.policy.forward import layout_of
    from vlmrl.policy.pack import Row
    from vlmrl.types import GenerationSettings, Request

    class Watched(routing.Replay):
        """Counts flips, and lets the router choose."""

        def of(self, layer: int, out: tuple[torch.Tensor, ...]) -> torch.Tensor:
            super().of(layer, out)
            return out[2]

    ks = tuple(range(answers))
    asked = [Request(prompt=p, ks=ks, seeds=tuple(rng.key(0, n, k) for k in ks)) for n, p in enumerate(given.prompts(prompts))]
    sampler = engine or ForkEngine(given.policy, given.vision)
    found = sampler.generate(asked, GenerationSettings(max_new_tokens=tokens, routes=True))
    pairs = [(g, request.prompt, one) for g, (request, group) in enumerate(zip(asked, found, strict=True)) for one in group]
    rows = [Row(index=i, group=g, prompt=p, response=one.ids, routes=one.routes) for i, (g, p, one) in enumerate(pairs)]
    sampled = torch.cat([torch.tensor(one.logprobs) for _, _, one in pairs])
    out: list[tuple[str, list[float]]] = []
    for layout in LAYOUTS:
        numbers: list[float] = []
        for replay in (Watched, routing.Replay):
            how = layout_of(given.policy, layout)
            batch = how.pack(rows, given.policy.positions, given.policy.device, pad_id=given.bundle.end_ids[0])
            with torch.no_grad(), mock.patch.object(routing, "Replay", replay):
                more = {"temperature": 1.0, "forbidden": given.bundle.forbidden_ids, "train": False}
                logp_BT = how.forward(given.policy, batch, given.vision, **more).logp_BT
            gap = (torch.cat([logp_BT[i, : len(row.response)] for i, row in enumerate(rows)]) - sampled).abs()
            flips, calls = batch.measured[routing.FLIPS]
            numbers += [float(flips) / float(calls), float(gap.mean()), float(gap.max())]
        out.append((layout, numbers))
    return out


def line(cells: Sequence[str]) -> str:
    """A row of the table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("hf", "vllm"), default="hf")
    parser.add_argument("--families", nargs="*")
    parser.add_argument("--dtype", default="bfloat16")
    for name, default in (("prompts", 4), ("answers", 6), ("tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    print(line(HEAD), line(["---"] * len(HEAD)), sep="\n", flush=True)
    for family in args.families or (FAMILIES if args.engine == "hf" else OF_VLLM):
        with tempfile.TemporaryDirectory() as folder:
            given = opened(family, Path(folder), dtype=args.dtype, prompts=args.prompts, engine=args.engine)
            with vllm(given, Path(folder) / "model", args.dtype) if args.engine == "vllm" else nullcontext() as engine:
                found = measured(given, prompts=args.prompts, answers=args.answers, tokens=args.tokens, engine=engine)
            for layout, numbers in found:
                cells = [f"{100 * x:.2f}%" if n % 3 == 0 else f"{x:.2g}" for n, x in enumerate(numbers)]
                print(line([f"`{family}`", f"`{layout}`", *cells]), flush=True)


if __name__ == "__main__":
    main()
