"""The layout `repeat`, the reference: every answer is a right-padded row of its own, with its prompt repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.policy.forward import Layout, TokenLogprobs, embed, read_tokens, scored
from vlmrl.policy.head import HeadOptions
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PositionSpec, Row, extend, prompt_positions, response_mask, tensor_of, to_device
from vlmrl.policy.vision import VisionCache


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Right-padded tensors of a few rows. B rows, S tokens with prompt, T response tokens."""

    rows: tuple[Row, ...]
    ids_BS: torch.Tensor
    """On the host: what is counted in ids, and checked, waits for no device."""
    attention_BS: torch.Tensor
    positions_3BS: torch.Tensor
    score_M: torch.Tensor
    """Place in the flat [B * S] of the hidden state that predicts each response token, in the order of `mask_BT`."""
    targets_M: torch.Tensor
    """On the host."""
    mask_BT: torch.Tensor
    """True on response tokens."""

    @property
    def group_B(self) -> torch.Tensor:
        return torch.tensor([row.group for row in self.rows])

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model, padding included."""
        return self.ids_BS.numel()


def split(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Cut rows, in their order, into micro-batches with `rows * longest <= max_tokens`; a single row may exceed the budget. So the rows of
    a group stay together and their media are encoded once. Returns places.
    """
    out: list[list[int]] = []
    longest = 0
    for place, row in enumerate(rows):
        length = len(row.prompt.ids) + len(row.response)
        if out and max(longest, length) * (len(out[-1]) + 1) <= max_tokens:
            out[-1].append(place)
            longest = max(longest, length)
        else:
            out.append([place])
            longest = length
    return out


def pack(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> MicroBatch:
    """Make the tensors of one micro-batch."""
    lengths = [len(row.prompt.ids) + len(row.response) for row in rows]
    width, count = max(lengths), len(rows)
    ids = torch.full((count, width), pad_id, dtype=torch.int64)
    attention = torch.zeros((count, width), dtype=torch.int64)
    positions = torch.zeros((3, count, width), dtype=torch.int64)
    scored: list[torch.Tensor] = []
    cached: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for b, row in enumerate(rows):
        start, n = len(row.prompt.ids), len(row.response)
        response = tensor_of(row.response)
        if id(row.prompt) not in cached:  # the rows of a group have one prompt
            cached[id(row.prompt)] = tensor_of(row.prompt.ids), prompt_positions(row.prompt, spec)
        prompt_ids, prompt_at = cached[id(row.prompt)]
        ids[b, :start], ids[b, start : start + n] = prompt_ids, response
        attention[b, : start + n] = 1
        positions[:, b, : start + n] = extend(prompt_at, n)
        scored.append(torch.arange(n) + (b * width + start - 1))  # a token is predicted by the state before it
    return MicroBatch(
        rows=tuple(rows),
        ids_BS=ids,
        attention_BS=to_device(attention, device),
        positions_3BS=to_device(positions, device),
        score_M=to_device(torch.cat(scored), device),
        targets_M=tensor_of([token for row in rows for token in row.response]),
        mask_BT=to_device(response_mask(rows), device),
    )


def repeat(policy: Policy, batch: MicroBatch, vision: VisionCache, *, train: bool, **how: Any) -> TokenLogprobs:
    """Run the model on one row per answer, each with its prompt. `how`: fields of `HeadOptions`.

    Returns:
        Log-probs and entropies [B, T] float32, in nats, and what else is asked for.
    """
    asked = HeadOptions(**how)
    handles = [handle for row in batch.rows for handle in row.prompt.media]
    features = vision.features(policy, handles, train=train)
    inputs = embed(policy, batch.ids_BS, [(row.prompt, b, 0) for b, row in enumerate(batch.rows)], features)
    with policy.autocast():
        hidden_BSH = policy.core.language_model(
            **inputs.arguments(), attention_mask=batch.attention_BS, position_ids=batch.positions_3BS, use_cache=False
        ).last_hidden_state
        values = read_tokens(
            hidden_BSH.flatten(0, 1)[batch.score_M],  # [B, S, H] -> [M, H]: of prompts nobody needs logits
            policy.head,
            batch.targets_M,
            asked,
        )
    return scored(batch.rows, values, asked)


REPEAT = Layout(split, pack, repeat)
"""`repeat` of `policy.forward.LAYOUTS`."""
