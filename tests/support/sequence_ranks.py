"""Packed rows whose columns lie on several ranks, against one process: log-probs, and gradients of losses over whole answers.

    torchrun --nproc-per-node 2 -m tests.support.sequence_ranks FOLDER

Every rank owns one row; all ranks work on them in turn. Each process also computes all rows alone. Rank 0 writes the largest relative
difference of every case to FOLDER/<ranks>.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

from tests.support.saved_bytes import PAD, Store, build, policy_of
from vlmrl.extras.scale.across import shared_columns
from vlmrl.extras.scale.sequence import Ranks
from vlmrl.policy.forward import TokenLogprobs, shared_prefix
from vlmrl.policy.head import TokenStat
from vlmrl.policy.load import freeze
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PackedBatch, Row, pack_shared
from vlmrl.policy.vision import VisionCache
from vlmrl.types import MediaHandle, Prompt, Sample


@dataclass(frozen=True)
class Case:
    family: str
    backend: str
    freeze: tuple[str, ...] = ()
    recompute: bool = False
    entropy: bool = False
    """A loss with entropies, and with another quantity of the logits."""


CASES = {
    "qwen2.5-vl, merge": Case("qwen2_5_vl", "merge"),
    "qwen3-vl, merge": Case("qwen3_vl", "merge", entropy=True),
    "qwen2.5-vl, two calls": Case("qwen2_5_vl", "two_call", entropy=True),
    "qwen3-vl, dense, recomputed": Case("qwen3_vl", "dense", recompute=True),
    "qwen3-vl, frozen tower": Case("qwen3_vl", "two_call", freeze=("vision", "projector")),
    "qwen2.5-vl, language frozen": Case("qwen2_5_vl", "merge", freeze=("language",)),
}
IMAGE, VIDEO = (1, 4, 8), (3, 4, 4)
ROWS: list[list[tuple[str, tuple[int, ...]]]] = [
    [("video", (5, 3, 4)), ("text", (6, 2)), ("image", (3,))],
    [("text", (4, 1, 7))],
    [("image", (2, 9)), ("image", (8,))],
    [("text", (1,)), ("video", (11, 2))],
]
"""Groups of the row of each rank: medium of the prompt, tokens of the answers. One has text alone, so its columns hold no features."""


def prompt_of(kind: str, store: Store, *, per_step: bool) -> Prompt:
    ids, media, spans, owners = [3, 4, 5], [], [], []
    if kind != "text":
        grid = IMAGE if kind == "image" else VIDEO
        handle: MediaHandle = store.medium(kind, grid)  # pyright: ignore[reportArgumentType]
        media = [handle]
        parts = grid[0] if per_step and kind == "video" else 1
        for _ in range(parts):
            spans.append((len(ids), len(ids) + handle.tokens // parts))
            ids += [PAD[kind]] * (handle.tokens // parts) + [6]
        owners = [0] * parts
    sample = Sample(id="", question="", task="", answer_type="", answer="", gt={}, media=())
    return Prompt(sample=sample, ids=(*ids, 7, 8), media=tuple(media), spans=tuple(spans), owners=tuple(owners), answer_format="")


def batch_of(number: int, policy: Policy, store: Store) -> PackedBatch:
    rows: list[Row] = []
    for g, (kind, answers) in enumerate(ROWS[number]):
        prompt = prompt_of(kind, store, per_step=policy.positions.per_step)
        for k, length in enumerate(answers):
            response = tuple(1 + (7 * number + 3 * g + 5 * k + i * i) % 50 for i in range(length))
            rows.append(Row(index=len(rows), group=g, prompt=prompt, response=response))
    return pack_shared(rows, policy.positions, policy.device, pad_id=0)


def loss_of(scored: TokenLogprobs, batch: PackedBatch, case: Case) -> torch.Tensor:
    """Not a sum over tokens: the ratio of a whole answer."""
    mask = batch.mask_BT
    means = torch.where(mask, scored.logp_BT, 0).sum(1) / mask.sum(1)
    weights = torch.linspace(-1, 1, len(means)) + 0.3
    loss = ((means + 4).exp() * weights).sum()
    if case.entropy:
        assert [value.requires_grad for value in scored.stats.values()] == [False, True]
        loss = loss + (torch.where(mask, scored.entropy_BT, 0).sum(1) ** 2).sum() * 0.01
        loss = loss + (torch.where(mask, scored.stats["differentiable"] * scored.stats["plain"], 0).sum(1) ** 2).sum()
    return loss


def collision(logp_MV: torch.Tensor) -> torch.Tensor:
    return (2 * logp_MV).exp().sum(1)


class World:
    """Model and rows of a case, the same on every rank."""

    def __init__(self, case: Case, count: int):
        torch.manual_seed(0)
        model = build(
            case.family, hidden=32, layers=3, heads=4, kv_heads=2, mlp=48, vision={"hidden": 16, "depth": 3, "heads": 2, "mlp": 32}
        )
        self.case, self.policy = case, policy_of(model, compute=torch.float32, backend=case.backend)
        self.named = freeze(self.policy, case.freeze)
        if case.recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train(case.recompute)
        self.store = Store(3 * 2 * model.config.vision_config.patch_size**2)
        self.batches = [batch_of(number, self.policy, self.store) for number in range(count)]
        self.options: dict[str, Any] = {"temperature": 0.9, "forbidden": (0,), "train": True, "entropy_gradient": case.entropy}
        if case.entropy:
            self.options["stats"] = {"plain": TokenStat(collision), "differentiable": TokenStat(collision, gradient=True)}

    def gradients(
        self, score: Callable[[int, VisionCache], TokenLogprobs | None]
    ) -> tuple[dict[str, torch.Tensor], dict[int, torch.Tensor]]:
        """(sums of gradients over all rows, log-probs) where `score` gives the log-probs of a row; None: another rank's."""
        vision, logp = VisionCache(self.store, budget_bytes=2**24), {}
        self.policy.model.zero_grad()
        for number, batch in enumerate(self.batches):
            scored = score(number, vision)
            if scored is None:
                continue
            logp[number] = scored.logp_BT.detach()
            loss = loss_of(scored, batch, self.case)
            if loss.requires_grad:
                loss.backward()
        return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self.named}, logp


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) if b.numel() else 0.0


def differences(case: Case, ranks: Ranks) -> dict[str, float]:
    world = World(case, ranks.size)
    alone, logp = world.gradients(lambda number, vision: shared_prefix(world.policy, world.batches[number], vision, **world.options))
    assert all(bool(value.abs().max() > 0) for name, value in alone.items() if "k_proj.bias" not in name), "everything takes part"

    def in_turn(number: int, vision: VisionCache) -> TokenLogprobs | None:
        batch = world.batches[number] if number == ranks.rank else None
        scored = shared_columns(world.policy, batch, vision, ranks, number, **world.options)
        if batch is not None:
            return scored
        assert scored.logp_BT.numel() == 0
        (scored.logp_BT.sum() * 0).backward()
        return None

    shared, of_rank = world.gradients(in_turn)
    for value in shared.values():
        torch_dist.all_reduce(value)
    still: dict[str, Any] = world.options | {"train": False}
    with torch.no_grad():
        scored = shared_columns(
            world.policy,
            world.batches[0] if ranks.rank == 0 else None,
            VisionCache(world.store, budget_bytes=2**24),
            ranks,
            0,
            **still,
        )
    without = apart(scored.logp_BT, logp[0]) if ranks.rank == 0 else 0.0
    return {
        "gradients": max(apart(shared[name], alone[name]) for name in alone),
        "log-probs": max(apart(value, logp[number]) for number, value in of_rank.items()),
        "log-probs without gradient": without,
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch_dist.init_process_group("gloo")
    group, own, size = torch_dist.group.WORLD, torch_dist.get_rank(), torch_dist.get_world_size()
    ranks = Ranks(rank=own, size=size, control=group, device=group)
    found = {name: differences(case, ranks) for name, case in CASES.items()}
    gathered: list[Any] = [None] * size
    torch_dist.all_gather_object(gathered, found)
    if own == 0:
        worst = {name: {what: max(of[name][what] for of in gathered) for what in found[name]} for name in found}
        (folder / f"{size}.json").write_text(json.dumps(worst, indent=1))
    torch_dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
