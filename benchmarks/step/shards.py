"""What shards cost: every training engine beside each other, and our step in shards beside a plain loop of FSDP2, on two ranks.

    python -m benchmarks.step.shards [--steps 20] [--write docs/benchmarks/shards.md]

The ranks are processes on one CPU that talk over gloo: ratios on this machine, and counts of calls and bytes that hold anywhere. No
statement about GPUs. Engines take turns step by step, in an order that turns round, so that what else the machine does hits all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, how_measured, module_of

WARM_UP = 3
TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4}
"""Of the larger model; heads have the size of the small one's, and the tower keeps its two blocks."""
BUDGET = 290
"""Tokens of a micro-batch of the larger model: two of them on each rank."""
Row = dict[str, float]


def enlarge(folder: Path) -> None:
    """Put a model of the larger size in the place of the small one, drawn from a seed."""
    import torch
    import transformers

    path = folder / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["text_config"] |= TEXT
    config["text_config"].pop("layer_types", None)
    config["vision_config"]["out_hidden_size"] = TEXT["hidden_size"]
    path.write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(0)
    kind = transformers.Qwen2_5_VLConfig.from_pretrained(folder / "model")
    transformers.Qwen2_5_VLForConditionalGeneration(kind).save_pretrained(folder / "model")


def plain(folder: Path, case: Any) -> Callable[[], Any]:
    """A loop of FSDP2 as its manual has it, around the same units and the same packed forward: forward, backward, clip, step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from tests.support import shard_ranks, tiny
    from vlmrl.extras.scale.root import Root
    from vlmrl.policy.forward import layout_of
    from vlmrl.policy.load import freeze
    from vlmrl.train import dist

    world = tiny.load(folder / "model", folder / "world")
    policy = world.policy
    root, core = Root(policy.model), policy.core
    mesh = init_device_mesh("cpu", (dist.world(),))
    for unit in (*core.visual.blocks, core.visual, *core.language_model.layers, root):
        sharded: Any = fully_shard(unit, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    freeze(policy, ())
    optimizer = torch.optim.AdamW(root.parameters(), lr=1e-6, weight_decay=0.0)
    layout = layout_of(policy, "shared_prefix")
    rows = shard_ranks.rows_of(world, case.ranks)[dist.rank()]
    how = {"temperature": 1.0, "forbidden": (), "train": True, "entropy_gradient": False}

    def step() -> None:
        micros = [
            layout.pack([rows[n] for n in places], policy.positions, policy.device, pad_id=0) for places in layout.split(rows, case.budget)
        ]
        tokens = torch.stack([micro.mask_BT.sum() for micro in micros]).sum()
        torch.distributed.all_reduce(tokens)
        for micro in micros:

            def scores(micro: Any = micro) -> tuple[torch.Tensor, torch.Tensor]:
                scored = layout.forward(policy, micro, world.vision, **how)
                return scored.logp_BT, scored.entropy_BT

            logp_BT, _ = root(scores)
            (-(logp_BT * micro.mask_BT).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(root.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        policy.version += 1
        policy.vision_version += 1

    return step


def measure(update: Mapping[str, Callable[[], Any]], steps: int) -> dict[str, Row]:
    """Medians over the steps, and the calls of one step more: counting takes time."""
    from tests.support.calls import GATHERS, SUMS, Calls
    from vlmrl.train import dist

    wall: dict[str, list[float]] = {name: [] for name in update}
    cpu: dict[str, list[float]] = {name: [] for name in update}
    for step in range(WARM_UP + steps):
        for name in update if step % 2 else reversed(list(update)):
            dist.gather(None)
            began, busy = time.perf_counter(), time.process_time()
            update[name]()
            if step >= WARM_UP:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - busy)
    found: dict[str, Row] = {}
    for name, run in update.items():
        with Calls() as calls:
            run()
        found[name] = {
            "seconds": statistics.median(wall[name]),
            "CPU seconds": statistics.median(cpu[name]),
            "gathered MB": calls.moved(GATHERS) / 1e6,
            "summed MB": calls.moved(SUMS) / 1e6,
            "gathers of weights": sum(calls.of(group, *GATHERS) for group in calls.groups - {"control"}),
            "sums of gradients": sum(calls.of(group, *SUMS) for group in calls.groups - {"control"}),
            "control calls": calls.of("control"),
        }
    return found


def rank(folder: Path, steps: int) -> None:
    """One of the two ranks."""
    from dataclasses import replace

    from tests.support import preload, shard_ranks
    from vlmrl.train import dist

    assert preload is not None
    dist.start()
    case = shard_ranks.CASES["alike"]
    found = {"small": measure({name: shard_ranks.updater(folder / "small", case, name) for name in shard_ranks.SHARDINGS}, steps)}
    kinds = ((*["video"] * 4, *["text"] * 2),) * 2
    case = replace(case, ranks=kinds, budget=BUDGET, lr=1e-6)
    ours = {name: shard_ranks.updater(folder / "large", case, name) for name in ("ddp", "fsdp")}
    found["large"] = measure({**ours, "plain FSDP2 loop": plain(folder / "large", case)}, steps)
    if dist.is_main():
        (folder / "found.json").write_text(json.dumps(found))
    dist.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank(args.rank, args.steps)
        return
    from tests.support import shard_ranks

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in ("small", "large"):
            (folder / size).mkdir()
            shard_ranks.make_files(folder / size, "qwen2_5_vl")
        enlarge(folder / "large")
        before = os.getloadavg()[0]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [*launcher, "-m", module_of(__file__), "--rank", name, "--steps", str(args.steps)],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        found = json.loads((folder / "found.json").read_text())
    text = document(found, args.steps, (before, os.getloadavg()[0]))
    print(text)
    if args.write is not None:
        args.write.write_text(text, encoding="utf-8")


def document(found: Mapping[str, dict[str, Row]], steps: int, load: tuple[float, float]) -> str:
    """The page."""
    small, large = found["small"], found["large"]
    for rows, base, of, column in ((small, "ddp", "of ddp", "seconds"), (large, "plain FSDP2 loop", "of the plain loop", "CPU seconds")):
        for row in rows.values():
            row[of] = row[column] / rows[base][column]
    lines = [
        "# What shards cost",
        "",
        "An update on two ranks with each training engine, in turns in one run. The ranks are processes on one CPU over gloo, so seconds",
        "say what an engine costs here; calls and bytes are counts that hold anywhere. Nothing here is about GPUs.",
        "",
        "## Engines beside each other",
        "",
        "About a million weights, one micro-batch: median seconds, their ratio to replicas (`ddp`), and the bytes that one rank gathers",
        "(weights) and sums (gradients).",
        "",
        *table(small, ("seconds", "of ddp", "gathered MB", "summed MB")),
        "",
        "## Our step beside a plain loop",
        "",
        "46 million weights (hidden size 512, 12 layers, a tower of two blocks), two micro-batches of some 270 tokens with videos and",
        "text on each rank, AdamW. The plain loop is `fully_shard` around the same units with the same packed forward, and nothing of the",
        "trainer: one sum of token counts, forward, backward, clip, step. CPU seconds are those of rank 0; they say something where others",
        "use the machine, too, wall seconds do not.",
        "Control calls are those in which ranks agree: on the passes of all micro-batches, on the number of tokens, on what is logged and",
        "whether it is finite; with replicas also on whether all had the memory, and that all have come to the sum of gradients.",
        "",
        *table(large, ("CPU seconds", "of the plain loop", "seconds", "gathers of weights", "sums of gradients", "control calls")),
        "",
        *how_measured(
            f"python -m benchmarks.step.shards --steps {steps}",
            f"{WARM_UP} updates of each engine before, not counted",
            f"load average (1 minute) {load[0]:.1f} before and {load[1]:.1f} at the end; much above two means that others were at work",
            libraries=("torch", "transformers", "deepspeed"),
        ),
    ]
    return "\n".join(lines)


def table(rows: Mapping[str, Row], columns: tuple[str, ...]) -> list[str]:
    """A table of some columns; the benchmark's own names are titles."""
    return [
        "| sharding | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(f"| {name} | " + " | ".join(f"{row[column]:.3g}" for column in columns) + " |" for name, row in rows.items()),
    ]


def told(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


if __name__ == "__main__":
    main()
