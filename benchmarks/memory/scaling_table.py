"""The table of docs/scaling.md: what `vlmrl plan` computes for four published models on 1, 8 and 64 GPUs. Nothing in it is measured.

python -m benchmarks.memory.scaling_table           # print it
python -m benchmarks.memory.scaling_table --write   # put it into docs/scaling.md
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common import ROOT
from vlmrl.extras.plan.advice import remedy
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import named_shape
from vlmrl.extras.plan.result import Plan, plan
from vlmrl.extras.plan.settings import Settings

PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- table of benchmarks/memory/scaling_table.py -->\n", "<!-- end of the table -->\n"
MODELS, GPUS, PROMPTS = ("3b", "7b", "32b", "72b"), (1, 8, 64), (1024, 8192, 32768)
GROUPS, ANSWERS, ANSWER = 4, 8, 512
"""Prompts per GPU and step, answers of each, tokens of an answer."""
COLUMNS = ("model", "GPUs / shards", "prompt", "state", "activations", "tower", "peak GB", "fits", "training s", "traffic s", "rollout s")
COLUMNS += ("step s", "longest", "what makes it fit")
WORDS = {
    "model.gradient_checkpointing": "recompute",
    "model.vision_chunk_patches": "tower by chunks",
    "train.sharding": "fsdp",
    "train.shard_size": "shards",
    "train.sequence=2": "rows shared by 2",
    "train.sequence=4": "rows shared by 4",
    "train.offload=optimizer": "offload optimizer",
    "train.offload=all": "offload all",
    "train.offload_activations": "offload activations",
    "model.lora": "LoRA",
}


def settings(model: str, gpus: int, prompt: int) -> Settings:
    """One row: H100, bfloat16, recomputation, one group per micro-batch, vLLM on the same GPUs, fsdp where there are several."""
    return Settings(
        shape=named_shape(f"qwen2.5-vl-{model}"),
        gpu=gpu_of("h100"),
        gpus=gpus,
        sharding="fsdp" if gpus > 1 else "none",
        dtype="bfloat16",
        recompute=True,
        budget=prompt + ANSWERS * ANSWER,
        groups=GROUPS,
        answers=ANSWERS,
        prompt=prompt,
        answer=ANSWER,
        engine="vllm",
    )


def word(change: str) -> str:
    """An override in a word or two."""
    for begin, short in WORDS.items():
        if change.startswith(begin):
            return short
    key, _, value = change.rpartition(".")[2].partition("=")
    if key == "kind":
        return "8-bit AdamW"
    return "freeze tower" if key == "freeze" else f"micro-batch {value}" if key.startswith("max_tokens") else f"{key} {value}"


def cells(model: str, gpus: int, prompt: int, found: Plan) -> list[str]:
    """One row of the table."""
    parts, t = found.memory.parts, found.time
    steps = remedy(found, "rl")
    changes = "-" if steps == [] else ", ".join(word(step.what) for step in steps) if steps else "more GPUs"
    memory = [f"{parts[name] / 1e9:.0f}" for name in ("state", "activations", "tower")] + [f"{found.memory.peak / 1e9:.0f}", found.fits]
    seconds = [f"{x:.1f}" for x in (t.forward_backward, t.traffic, t.phases["rollout"], t.step)]
    times = [*seconds, t.dominates] if found.fits != "no" else ["", "", "", "", ""]
    shared = f" / {found.memory.shard}" if found.memory.shard > 1 else ""
    return [model.upper(), f"{gpus}{shared}", f"{prompt // 1024}k", *memory, *times, changes]


def table() -> str:
    """The table as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for model in MODELS:
        for gpus in GPUS:
            for prompt in PROMPTS:
                lines.append("| " + " | ".join(cells(model, gpus, prompt, plan(settings(model, gpus, prompt)))) + " |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The table that a page holds."""
    return page.partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into docs/scaling.md")
    if parser.parse_args().write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        sys.stdout.write(table())


if __name__ == "__main__":
    main()
