"""Packs rows (prompt + answer) into micro-batches under a token budget, with their M-RoPE positions: packed rows whose groups share a
prompt. Right-padded rows, which share nothing, are in `policy.repeat`.

A packed row is [prompt; answer 1; ...; answer G], group after group (`PrefixLayout`). Everything that acts per token is unchanged by the
layout; attention follows `allow`: a token sees the earlier tokens of its own prompt and of its own answer, and nothing else. A group
with one answer is an ordinary packed row, so padding-free supervised fine-tuning is the same layout. Idea: the Prefix Grouper technical
report (johncaged/PrefixGrouper); docs/design/003-shared-prefix.md.

Positions: everything that runs the model passes them explicitly. Text advances all three rows by one; a visual block that starts at p0 uses
(p0 + time, p0 + row, p0 + column) over its merged grid. Text resumes after a block by the `rule`: `max`, at the largest position so far + 1
(the authors' own code and vLLM; default), or `grid`, at p0 + max(rows, columns) (transformers 5.19 to 5.23; differs for Qwen2.5-VL's
videos only: docs/design/002-visual-contract.md).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from vlmrl.policy.runs import ColumnRun, RowLayout
from vlmrl.types import MediaHandle, Prompt

Rule = Literal["max", "grid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionSpec:
    """The part of a model's config that decides positions."""

    merge_size: int
    tokens_per_second: float | None
    """Temporal positions per second (Qwen2.5-VL); None: one position per temporal step (Qwen2-VL)."""
    rule: Rule = "max"
    per_step: bool = False
    """Whether every temporal step of a video has a span of its own (Qwen3-VL)."""


class VisualSpan(NamedTuple):
    """Columns [start, end) of a prompt hold rows [first, last) of the features of `handle`."""

    start: int
    end: int
    handle: MediaHandle
    first: int
    last: int


def visual_index(prompt: Prompt) -> list[VisualSpan]:
    """Find which feature rows of which medium stand in which columns of a prompt, in the order of columns.

    Raises:
        ValueError: spans overlap, are out of order, or do not hold exactly the tokens of their media.
    """
    return _visual_spans(prompt.spans, prompt.media, prompt.owners)


def _visual_spans(spans: Sequence[tuple[int, int]], media: Sequence[MediaHandle], owners: Sequence[int]) -> list[VisualSpan]:
    owners = owners or range(len(media))
    if len(owners) != len(spans) or any(not 0 <= owner < len(media) for owner in owners):
        raise ValueError(f"{len(spans)} visual spans of {len(media)} media, but owners are {list(owners)}")
    held = [0] * len(media)
    out: list[VisualSpan] = []
    for (start, end), owner in zip(spans, owners, strict=True):
        if end <= start or (out and start < out[-1].end):
            raise ValueError(f"visual span {start}:{end} is empty, or begins before the one in front of it has ended")
        out.append(VisualSpan(start, end, media[owner], held[owner], held[owner] + end - start))
        held[owner] += end - start
    for number, (handle, tokens) in enumerate(zip(media, held, strict=True)):
        if tokens != handle.tokens:
            raise ValueError(f"the visual spans of medium {number} hold {tokens} tokens but its features are {handle.tokens}")
    return out


def _block(start: int, span: VisualSpan, spec: PositionSpec) -> torch.Tensor:
    """Positions of one visual block, [3, tokens]."""
    media, tokens = span.handle, span.end - span.start
    t, h, w = media.grid_thw[0], media.grid_thw[1] // spec.merge_size, media.grid_thw[2] // spec.merge_size
    if spec.per_step and media.kind == "video":
        t = 1  # each step is a span of its own, and its time is text
    if tokens != t * h * w:
        raise ValueError(
            f"visual span {span.start}:{span.end} has {tokens} tokens but its {media.kind} with grid {media.grid_thw} needs {t * h * w}"
            f"{' for each temporal step' if spec.per_step else ''}; was the prompt encoded for another model?"
        )
    interval = 1.0
    if media.kind == "video" and spec.tokens_per_second is not None:
        interval = spec.tokens_per_second * (media.seconds_per_grid if media.seconds_per_grid is not None else 1.0)
    time = (torch.arange(t, dtype=torch.float32) * interval).long()  # cut, not rounded, as in the models' own code
    grid = torch.meshgrid(time, torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([axis.reshape(-1) for axis in grid]) + start  # [t, h, w] three times -> [3, t * h * w]


def mrope_positions(
    length: int, spans: Sequence[tuple[int, int]], media: Sequence[MediaHandle], spec: PositionSpec, owners: Sequence[int] = ()
) -> torch.Tensor:
    """Lay out the positions of a prompt of `length` tokens. `owners` as in `Prompt`.

    Returns:
        [3, length] int64 (rows: time, height, width).

    Raises:
        ValueError: as `visual_index`, or a span is not as long as the model lays out its medium.
    """
    out: list[torch.Tensor] = []
    done, position = 0, 0
    for span in _visual_spans(spans, media, owners):
        text = span.start - done
        out.append((torch.arange(text) + position).expand(3, -1))
        position += text
        block = _block(position, span, spec)
        out.append(block)
        position = int(block.max()) + 1 if spec.rule == "max" else position + max(span.handle.grid_thw[1:]) // spec.merge_size
        done = span.end
    out.append((torch.arange(length - done) + position).expand(3, -1))
    return torch.cat(out, dim=1)


def prompt_positions(prompt: Prompt, spec: PositionSpec) -> torch.Tensor:
    """Lay out the positions of a prompt (`mrope_positions`).

    Returns:
        [3, len(prompt.ids)] int64.
    """
    return mrope_positions(len(prompt.ids), prompt.spans, prompt.media, spec, prompt.owners)


def extend(positions: torch.Tensor, tokens: int) -> torch.Tensor:
    """Append to prompt positions those of `tokens` text tokens.

    A chat template ends every prompt with text, so the last prompt position is the same on the three rows.

    Returns:
        [3, P + tokens] int64.
    """
    return torch.cat([positions, following(positions, tokens)], dim=1)


def following(positions: torch.Tensor, tokens: int) -> torch.Tensor:
    """Lay out only those of the text tokens behind the prompt, which must not end inside a visual block.

    Returns:
        [3, tokens] int64.
    """
    last = positions[:, -1:]
    if not bool((last == last[0]).all()):
        raise ValueError("the prompt ends inside a visual block; a response cannot follow it")
    return last + 1 + torch.arange(tokens)


@dataclass(frozen=True, slots=True)
class Block:
    """One group in a packed row: `prefix` prompt tokens from column `start`, then the answers, `suffixes[i]` tokens each."""

    start: int
    prefix: int
    suffixes: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.prefix + sum(self.suffixes)

    @property
    def suffix_starts(self) -> tuple[int, ...]:
        """First column of each answer."""
        return tuple(itertools.accumulate(self.suffixes, initial=self.start + self.prefix))[:-1]


@dataclass(frozen=True)
class PrefixLayout(RowLayout):
    """The blocks of one packed row. A block with one answer is an ordinary causal row."""

    blocks: tuple[Block, ...]

    @functools.cached_property
    def runs(self) -> tuple[ColumnRun, ...]:
        out: list[ColumnRun] = []
        for block in self.blocks:
            answers = [(at, n) for at, n in zip(block.suffix_starts, block.suffixes, strict=True) if n]
            if len(answers) < 2:  # nothing is shared: an ordinary causal row
                out.append(ColumnRun(block.start, block.end, block.end, -1))
                continue
            prompt = len(out)
            out.append(ColumnRun(block.start, block.start + block.prefix, block.end, -1))
            out += [ColumnRun(at, at + n, at + n, prompt) for at, n in answers]
        return tuple(out)

    @functools.cached_property
    def score_rows(self) -> torch.Tensor:
        """Column whose hidden state predicts each answer token, in the order of groups, answers, tokens; int64 [M].

        The last prompt column appears once per answer: it predicts every first token.
        """
        rows = [torch.zeros(0, dtype=torch.int64)]
        for block in self.blocks:
            answers = block.start + block.prefix
            before = torch.arange(answers - 1, block.end - 1)
            before[[at - answers for at, length in zip(block.suffix_starts, block.suffixes, strict=True) if length]] = answers - 1
            rows.append(before)
        return torch.cat(rows)


def attention_pairs(prefix: int, suffixes: Sequence[int]) -> int:
    """Count the query-key pairs of one group under the shared prefix."""
    return prefix * (prefix + 1) // 2 + sum(c * prefix + c * (c + 1) // 2 for c in suffixes)


def layout_of(groups: Sequence[tuple[int, Sequence[int]]]) -> PrefixLayout:
    """Lay out (prompt length, answer lengths), group after group.

    Raises:
        ValueError: a prompt without tokens: there would be nothing to predict the first token of an answer from.
    """
    blocks: list[Block] = []
    at = 0
    for prefix, suffixes in groups:
        if prefix < 1:
            raise ValueError("a group needs at least one prompt token")
        blocks.append(Block(at, prefix, tuple(suffixes)))
        at = blocks[-1].end
    return PrefixLayout(tuple(blocks))


def partition(groups: Sequence[tuple[int, Sequence[int]]], budget: int) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Deal groups (prompt length, answer lengths) into packed rows of at most `budget` tokens.

    First fit, largest first. A group over the budget is cut between answers and its prompt is computed again in every part, which
    changes no gradient; a single answer with its prompt may exceed the budget. Returns, per packed row, (group, its answers).
    """
    parts: list[tuple[int, int, tuple[int, ...]]] = []
    for g, (prefix, suffixes) in enumerate(groups):
        held: tuple[int, ...] = ()
        size = prefix
        for i, length in enumerate(suffixes):
            if held and size + length > budget:
                parts.append((size, g, held))
                held, size = (), prefix  # the next part computes the prompt again
            held += (i,)
            size += length
        if held:
            parts.append((size, g, held))
    return [sorted(parts[n][1:] for n in row) for row in first_fit([size for size, *_ in parts], budget)]


def first_fit(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """Deal parts into packed rows of at most `budget` tokens, as places, largest first. A part over the budget has a row of its own."""
    rows: list[list[int]] = []
    room: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        at = next((r for r, left in enumerate(room) if left >= sizes[place]), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(budget)
        rows[at].append(place)
        room[at] -= sizes[place]
    return rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """One answer to train on. `index` is its place in the step's flat [N] tensors; -1: it stands in for a row that this rank has not."""

    index: int
    group: int
    prompt: Prompt
    response: tuple[int, ...]
    turn: int | None = None
    """Of its episode, from 0; None: it is no turn."""
    routes: tuple[str, ...] = ()
    """Experts to take, as in `Rollout`."""


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """One packed row: every prompt once, its answers behind it. N tokens, B answers, M answer tokens, T of the longest answer."""

    rows: tuple[Row, ...]
    prompts: tuple[tuple[Prompt, int], ...]
    """Each prompt and its first column."""
    layout: RowLayout
    ids_1N: torch.Tensor
    """On the host: what is counted in ids, and checked, waits for no device."""
    positions_31N: torch.Tensor
    score_M: torch.Tensor
    """Column whose hidden state predicts each answer token, in the order of `mask_BT`."""
    targets_M: torch.Tensor
    """On the host."""
    mask_BT: torch.Tensor

    @property
    def group_B(self) -> torch.Tensor:
        return torch.tensor([row.group for row in self.rows])

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return self.layout.tokens


def by_prompt(rows: Sequence[Row]) -> list[list[int]]:
    """Group the places of rows that share a prompt: same group and the same prompt object, wherever they stand."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault((row.group, id(row.prompt)), []).append(place)
    return list(found.values())


def split_shared(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Deal rows into packed rows, as places, groups whole where they fit (`partition`)."""
    groups = by_prompt(rows)
    sizes = [(len(rows[g[0]].prompt.ids), [len(rows[place].response) for place in g]) for g in groups]
    return [[groups[g][i] for g, held in part for i in held] for part in partition(sizes, max_tokens)]


def pack_shared(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> PackedBatch:
    """Pack all given rows into one. Positions start anew with every group; each answer continues its prompt's positions."""
    groups = by_prompt(rows)
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
    answers = [ids_N[block.start + block.prefix : block.end] for block in layout.blocks]  # the targets: in the order of `score_rows`
    return PackedBatch(
        rows=tuple(ordered),
        prompts=tuple(prompts),
        layout=layout,
        ids_1N=ids_N[None],
        positions_31N=to_device(torch.cat(positions, dim=1)[:, None], device),
        score_M=to_device(layout.score_rows, device),
        targets_M=torch.cat([ids_N[:0], *answers]),
        mask_BT=to_device(response_mask(ordered), device),
    )


def response_mask(rows: Sequence[Row]) -> torch.Tensor:
    """Mark the response tokens of each row.

    Returns:
        [N, T] bool.
    """
    lengths = torch.tensor([len(row.response) for row in rows], dtype=torch.int64)
    width = int(lengths.max()) if rows else 0
    return torch.arange(width)[None] < lengths[:, None]  # [1, T] < [N, 1]


def tensor_of(ids: Sequence[int]) -> torch.Tensor:
    """Make a tensor of ids by way of numpy, which reads a long sequence several times faster.

    Returns:
        [len(ids)] int64, on the host.
    """
    return torch.from_numpy(np.fromiter(ids, dtype=np.int64, count=len(ids)))


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor of the host to a device without waiting for what runs there: a copy from page-locked memory goes into the queue behind
    it, any other makes the host wait until the queue is empty.

    Returns:
        The tensor on `device`, itself where that is the CPU.
    """
    return tensor.to(device) if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
