"""What fits cards of 8 to 80 GB, by the memory model of `vlmrl plan`. Computed, not measured; nothing is loaded.

python benchmarks/small_cards.py      # writes docs/benchmarks/small_cards.md
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
from vlmrl.plan.gpus import gpu_of  # noqa: E402
from vlmrl.plan.memory import USABLE  # noqa: E402
from vlmrl.plan.model import Lora, named_shape  # noqa: E402
from vlmrl.plan.result import plan  # noqa: E402
from vlmrl.plan.settings import Settings  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks" / "small_cards.md"
CARDS = (8, 16, 24, 80)
SHAPES = ("qwen2.5-vl-3b", "qwen2.5-vl-7b")
TOWER = ("vision", "projector")
ADAPTERS = Lora(rank=16, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
WAYS: dict[str, dict[str, Any]] = {
    "`model.lora` of rank 16 on attention": {"lora": ADAPTERS, "freeze": TOWER},
    "all of the decoder, `optim.kind: adamw8bit`": {"freeze": TOWER, "optimizer": "adamw8bit"},
    "all of the decoder, AdamW": {"freeze": TOWER},
    "all weights, AdamW": {},
}
WORK: dict[str, Any] = {
    "dtype": "bfloat16",
    "recompute": True,
    "groups": 1,
    "answers": 8,
    "together": 1,
    "running": 8,
    "vision_cache": 2**28,
}
SIZES: dict[str, dict[str, int]] = {
    "pictures (512 + 256 tokens)": {"prompt": 512, "answer": 256, "budget": 2560},
    "clips (4096 + 512 tokens)": {"prompt": 4096, "answer": 512, "budget": 8192},
}


def peak(shape: str, way: dict[str, Any], size: dict[str, int]) -> int:
    """Bytes of one GPU at the worst moment of a step."""
    card = replace(gpu_of("h100"), memory=10**12)  # its size decides nothing here: generation is transformers'
    return plan(Settings(shape=named_shape(shape), gpu=card, gpus=1, **WORK, **way, **size)).memory.peak


def rendered() -> str:
    """The page."""
    lines = ["# What fits a small card", "", "`python benchmarks/small_cards.py`, the memory model of `vlmrl plan` (`docs/plan.md`)."]
    lines += [
        "**Computed, not measured on a GPU.** One GPU, bfloat16 over float32 weights, recomputation, 8 answers to one prompt per step from transformers'"
    ]
    lines += [
        f"generation; a plan fits up to {USABLE:g} of the memory as sold. The memory model knows Qwen-VL shapes; smaller models of other"
    ]
    lines += ["families are not in it.", ""]
    for size, numbers in SIZES.items():
        lines += [f"## {size[0].upper()}{size[1:]}", "", "| model | what trains | peak GB | " + " | ".join(f"{c} GB" for c in CARDS) + " |"]
        lines += ["|---|---|---:|" + "---|" * len(CARDS)]
        for shape in SHAPES:
            for what, way in WAYS.items():
                need = peak(shape, way, numbers)
                fits = ["yes" if need <= USABLE * card * 1e9 else "-" for card in CARDS]
                lines.append(f"| {shape} | {what} | {need / 1e9:.1f} | {' | '.join(fits)} |")
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
