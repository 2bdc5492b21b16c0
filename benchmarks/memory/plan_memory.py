"""What `vlmrl plan` says a run needs, against what it needs: bytes of all storages that are alive on a CPU.

    python -m benchmarks.memory.plan_memory --write docs/benchmarks/plan_memory.md

State, forward and backward, the update and a rollout of two models with random weights and text alone; and the state of published
models, whose tensors are made on the device `meta`, where they have sizes and no memory.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import how_measured, module_of
from tests.support import saved_bytes
from vlmrl import fs
from vlmrl.compat import ensure_torchvision
from vlmrl.config.schema import OptimSection
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.memory import Memory, memory
from vlmrl.extras.plan.model import known_shapes, shape_of
from vlmrl.extras.plan.settings import SLACK, Settings
from vlmrl.policy.load import freeze
from vlmrl.train.adamw import make_optimizer


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and what it is asked."""

    name: str
    text: dict[str, Any]
    vision: dict[str, Any]
    prompt: int
    answers: int
    answer: int


CASES = (
    Case(
        name="toy",
        text={"hidden": 128, "layers": 3, "heads": 4, "kv_heads": 2, "mlp": 384, "vocab": 400},
        vision={"hidden": 32, "mlp": 64, "heads": 2},
        prompt=200,
        answers=8,
        answer=100,
    ),
    Case(
        name="46 M",
        text={"hidden": 512, "layers": 12, "heads": 8, "kv_heads": 4, "mlp": 1536, "vocab": 8000},
        vision={"hidden": 128, "mlp": 256, "heads": 4},
        prompt=400,
        answers=4,
        answer=70,
    ),
)
PUBLISHED = ("qwen2.5-vl-3b", "qwen2.5-vl-7b")
Row = tuple[str, str, int, int]
"""(model, what, measured bytes, planned bytes)."""


def settings(case: Case, model: Any, **changes: Any) -> Settings:
    values: dict[str, Any] = {"backend": "merge", "groups": 1, "answers": case.answers, "prompt": case.prompt, "answer": case.answer}
    values |= {"freeze": ("vision", "projector"), "visual": 0, "budget": 2**20}
    return Settings(shape=shape_of(model.config.to_dict()), gpu=gpu_of("h100"), gpus=1, **values | changes)


def without_guesses(found: Memory, phase: str) -> int:
    """Bytes of a phase without the cache of features and the slack, which a CPU does not have."""
    return found.phases[phase] - found.features - SLACK


def updated(case: Case) -> tuple[int, int]:
    """(bytes of the state, most bytes alive in an update that is not the first)."""
    policy = saved_bytes.policy_of(saved_bytes.build("qwen2_5_vl", vision=case.vision, **case.text), compute=torch.float32)
    optimizer, _ = make_optimizer(freeze(policy, ("vision", "projector")), OptimSection(), fused=True)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    live = saved_bytes.Live()
    for p in trained:
        p.grad = torch.full_like(p, 1e-3)
    optimizer.step()
    held = [p.data for p in policy.model.parameters()] + [p.grad for p in trained if p.grad is not None]
    held += [v for of in optimizer.state.values() for key, v in of.items() if key != "step"]
    for tensor in held:
        live.add(tensor)
    state = live.now
    with live:
        optimizer.step()
    return state, live.most


def measured(case: Case) -> list[Row]:
    """State and the peak of each phase of one model."""

    def build() -> Any:
        return saved_bytes.build("qwen2_5_vl", vision=case.vision, **case.text)

    model = build()
    s = settings(case, model)
    found = memory(s)
    state, update = updated(case)
    rows: list[Row] = [(case.name, "state", state, found.state.total), (case.name, "update", update, without_guesses(found, "update"))]
    group = [(case.prompt, (case.answer,) * case.answers)]
    for recompute in (False, True):
        passed = memory(s.changed(recompute=recompute))
        most = saved_bytes.peak(build(), group, recompute=recompute, frozen=("vision", "projector")) + passed.state.moments
        name = "forward and backward" + (", recomputed" if recompute else "")
        rows.append((case.name, name, most, without_guesses(passed, "forward/backward")))
    for prompts, answer in ((2, 16), (2, case.answer)):
        asked = {"prompts": prompts, "prompt": case.prompt, "answers": case.answers, "answer": answer}
        most = saved_bytes.rollout_peak(saved_bytes.policy_of(build(), compute=torch.float32), **asked)
        planned = memory(s.changed(groups=prompts, answer=answer))
        name = f"rollout, answers of {answer} tokens"
        rows.append((case.name, name, most + planned.state.moments, without_guesses(planned, "rollout")))
    return rows


def published(name: str) -> Row:
    """Weights of a published model on `meta`, with gradients and both moments of AdamW, which are of their sizes."""
    import transformers

    ensure_torchvision()
    given = known_shapes()[name]["config"]
    text = {key: value for key, value in given.items() if key not in ("model_type", "vision_config", "tie_word_embeddings")}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=given["vision_config"], tie_word_embeddings=given["tie_word_embeddings"]
    )
    with torch.device("meta"):
        model = transformers.Qwen2_5_VLForConditionalGeneration(config).float()
    model.tie_weights()
    s = Settings(shape=shape_of(given), gpu=gpu_of("h100"), gpus=1)
    return name, "state (`meta`)", 4 * sum(p.nbytes for p in model.parameters()), memory(s).state.total


def lines(rows: Sequence[Row]) -> list[str]:
    """Rows of the table."""
    return [f"| {name} | {what} | {most / 1e6:,.2f} | {plan / 1e6:,.2f} | {plan / most - 1:+.1%} |" for name, what, most, plan in rows]


def page(rows: Sequence[Row], command: str) -> str:
    """The Markdown page."""
    asked = [
        f"* {case.name}: {case.text['layers']} layers of {case.text['hidden']}, vocabulary of {case.text['vocab']:,}; "
        f"prompts of {case.prompt} tokens, {case.answers} answers of {case.answer}"
        for case in CASES
    ]
    return "\n".join(
        [
            "# Memory: plan against measured",
            "",
            "Bytes of all storages that are alive on a CPU, in float32 on one process, against `vlmrl plan` without its slack. The decoder",
            "trains whole, the tower is frozen; text alone. Nothing here ran on a GPU; what an allocator cannot use is not in it. The",
            "update is torch's fused AdamW, as on a GPU. Of the published models all trains: weights as transformers makes",
            "them on `meta`, four times with gradients and moments.",
            "",
            "| model | what | measured MB | plan MB | plan is off by |",
            "|---|---|---:|---:|---:|",
            *lines(rows),
            "",
            *asked,
            "",
            *how_measured(command, libraries=("torch",)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", type=Path, help="Markdown file")
    given = parser.parse_args()
    rows: list[Row] = []
    for found in itertools.chain(map(measured, CASES), ([published(name)] for name in PUBLISHED)):
        rows += found
        print("\n".join(lines(found)), flush=True)
    if given.write:
        fs.write_text(given.write, page(rows, f"python -m {module_of(__file__)} {' '.join(sys.argv[1:])}"))


if __name__ == "__main__":
    main()
