"""Rows (prompt + answer) to micro-batches of tensors under a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vlmrl.policy.positions import PositionSpec, extend, prompt_positions
from vlmrl.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer to train on. `index` is its place in the step's flat [N] tensors."""

    index: int
    group: int
    prompt: Prompt
    response: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Right-padded tensors of a few rows. B rows, S tokens with prompt, T response tokens."""

    rows: tuple[Row, ...]
    ids_BS: torch.Tensor
    attention_BS: torch.Tensor
    positions_3BS: torch.Tensor
    targets_BT: torch.Tensor
    mask_BT: torch.Tensor
    """True on response tokens."""
    hidden_BT: torch.Tensor
    """Column of `ids_BS` whose hidden state predicts each response token (0 outside the mask)."""

    @property
    def index_B(self) -> torch.Tensor:
        return torch.tensor([row.index for row in self.rows])

    @property
    def group_B(self) -> torch.Tensor:
        return torch.tensor([row.group for row in self.rows])

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model, padding included."""
        return self.ids_BS.numel()


def split(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Consecutive rows with `rows * longest <= max_tokens`; a single row may exceed the budget. Order is kept, so the rows of a
    group stay together and their media are encoded once."""
    out: list[list[Row]] = []
    longest = 0
    for row in rows:
        length = len(row.prompt.ids) + len(row.response)
        if out and max(longest, length) * (len(out[-1]) + 1) <= max_tokens:
            out[-1].append(row)
            longest = max(longest, length)
        else:
            out.append([row])
            longest = length
    return out


def pack(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> MicroBatch:
    """Tensors of one micro-batch."""
    lengths = [len(row.prompt.ids) + len(row.response) for row in rows]
    width, answers = max(lengths), max(len(row.response) for row in rows)
    count = len(rows)
    ids = torch.full((count, width), pad_id, dtype=torch.int64)
    attention = torch.zeros((count, width), dtype=torch.int64)
    positions = torch.zeros((3, count, width), dtype=torch.int64)
    targets = torch.zeros((count, answers), dtype=torch.int64)
    mask = torch.zeros((count, answers), dtype=torch.bool)
    hidden = torch.zeros((count, answers), dtype=torch.int64)
    cached: dict[int, torch.Tensor] = {}
    for b, row in enumerate(rows):
        start, n = len(row.prompt.ids), len(row.response)
        ids[b, : start + n] = torch.tensor(row.prompt.ids + row.response)
        attention[b, : start + n] = 1
        if id(row.prompt) not in cached:
            cached[id(row.prompt)] = prompt_positions(row.prompt, spec)
        positions[:, b, : start + n] = extend(cached[id(row.prompt)], n)
        targets[b, :n] = torch.tensor(row.response)
        mask[b, :n] = True
        hidden[b, :n] = torch.arange(start - 1, start - 1 + n)
    return MicroBatch(
        rows=tuple(rows),
        ids_BS=ids.to(device),
        attention_BS=attention.to(device),
        positions_3BS=positions.to(device),
        targets_BT=targets.to(device),
        mask_BT=mask.to(device),
        hidden_BT=hidden.to(device),
    )
