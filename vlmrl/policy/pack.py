"""Packs rows (prompt + answer) into micro-batches under a token budget: right-padded rows, or packed rows that share prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vlmrl.policy.positions import PositionSpec, extend, following, prompt_positions
from vlmrl.policy.prefix import PrefixLayout, layout_of, partition
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


def split(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Places of consecutive rows with `rows * longest <= max_tokens`; a single row may exceed the budget. Order is kept, so the rows
    of a group stay together and their media are encoded once."""
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
    """Tensors of one micro-batch."""
    lengths = [len(row.prompt.ids) + len(row.response) for row in rows]
    width, answers = max(lengths), max(len(row.response) for row in rows)
    count = len(rows)
    ids = torch.full((count, width), pad_id, dtype=torch.int64)
    attention = torch.zeros((count, width), dtype=torch.int64)
    positions = torch.zeros((3, count, width), dtype=torch.int64)
    targets = torch.zeros((count, answers), dtype=torch.int64)
    mask = response_mask(rows)
    hidden = torch.zeros((count, answers), dtype=torch.int64)
    cached: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for b, row in enumerate(rows):
        start, n = len(row.prompt.ids), len(row.response)
        response = tensor_of(row.response)
        if id(row.prompt) not in cached:
            cached[id(row.prompt)] = tensor_of(row.prompt.ids), prompt_positions(row.prompt, spec)
        prompt_ids, prompt_at = cached[id(row.prompt)]
        ids[b, :start], ids[b, start : start + n] = prompt_ids, response
        attention[b, : start + n] = 1
        positions[:, b, : start + n] = extend(prompt_at, n)
        targets[b, :n] = response
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


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """One packed row: every prompt once, its answers behind it. N tokens, B answers, M answer tokens, T of the longest answer."""

    rows: tuple[Row, ...]
    prompts: tuple[tuple[Prompt, int], ...]
    """Each prompt and its first column."""
    layout: PrefixLayout
    ids_1N: torch.Tensor
    positions_31N: torch.Tensor
    score_M: torch.Tensor
    """Column whose hidden state predicts each answer token, in the order of `mask_BT`."""
    targets_M: torch.Tensor
    mask_BT: torch.Tensor

    @property
    def group_B(self) -> torch.Tensor:
        return torch.tensor([row.group for row in self.rows])

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return self.layout.tokens


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    """Places of the rows that share a prompt: same group and the same prompt object, wherever they stand."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault((row.group, id(row.prompt)), []).append(place)
    return list(found.values())


def split_shared(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Places of the rows of each packed row, groups whole where they fit (`prefix.partition`)."""
    groups = _groups(rows)
    sizes = [(len(rows[g[0]].prompt.ids), [len(rows[place].response) for place in g]) for g in groups]
    return [[groups[g][i] for g, held in part for i in held] for part in partition(sizes, max_tokens)]


def pack_shared(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> PackedBatch:
    """One packed row of all given rows. Positions start anew with every group; each answer continues its prompt's positions."""
    groups = _groups(rows)
    layout = layout_of([(len(rows[g[0]].prompt.ids), [len(rows[place].response) for place in g]) for g in groups])
    ids: list[int] = []
    positions: list[torch.Tensor] = []
    prompts: list[tuple[Prompt, int]] = []
    for g in groups:
        prompt = rows[g[0]].prompt
        prompts.append((prompt, len(ids)))
        at = prompt_positions(prompt, spec)
        positions.append(at)
        ids += prompt.ids
        for place in g:
            ids += rows[place].response
            positions.append(following(at, len(rows[place].response)))
    ordered = [rows[place] for g in groups for place in g]
    ids_N = tensor_of(ids)
    answers = [ids_N[block.start + block.prefix : block.end] for block in layout.blocks]
    return PackedBatch(
        rows=tuple(ordered),
        prompts=tuple(prompts),
        layout=layout,
        ids_1N=ids_N[None].to(device),
        positions_31N=torch.cat(positions, dim=1)[:, None].to(device),
        score_M=layout.score_rows.to(device),
        targets_M=torch.cat([ids_N[:0], *answers]).to(device),
        mask_BT=response_mask(ordered).to(device),
    )


def response_mask(rows: Sequence[Row]) -> torch.Tensor:
    """True on the response tokens of each row, [N, T]."""
    lengths = torch.tensor([len(row.response) for row in rows], dtype=torch.int64)
    width = int(lengths.max()) if rows else 0
    return torch.arange(width)[None] < lengths[:, None]


def response_ids(rows: Sequence[Row], width: int) -> torch.Tensor:
    """Token ids of the answers, [N, width], 0 behind their ends."""
    out = torch.zeros((len(rows), width), dtype=torch.int64)
    for n, row in enumerate(rows):
        out[n, : len(row.response)] = tensor_of(row.response)
    return out


def tensor_of(ids: Sequence[int]) -> torch.Tensor:
    """int64 [len(ids)]; by way of numpy, which reads a long sequence several times faster."""
    return torch.from_numpy(np.fromiter(ids, dtype=np.int64, count=len(ids)))
