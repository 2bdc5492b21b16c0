"""The one maker of M-RoPE positions. Everything that runs the model passes positions from here explicitly.

Text advances all three rows by one. A visual block that starts at p0 uses (p0 + time, p0 + row, p0 + column) over its merged
grid. Where text resumes after the block is the `rule`:

* `max`: at the largest position so far + 1. The model authors' own code, and what vLLM samples with. Default.
* `grid`: at p0 + max(rows, columns). What transformers 5.17 to 5.19 compute for Qwen2.5-VL; differs from `max` for videos whose
  temporal positions run past their spatial ones.

For images and for text the rules agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from vlmrl.types import MediaHandle, Prompt

Rule = Literal["max", "grid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionSpec:
    """What of a model's config decides positions."""

    merge_size: int
    tokens_per_second: float | None
    """Temporal positions per second (Qwen2.5-VL); None: one position per temporal step (Qwen2-VL)."""
    rule: Rule = "max"


def _block(start: int, media: MediaHandle, spec: PositionSpec) -> torch.Tensor:
    """Positions of one visual block, [3, tokens]."""
    t, h, w = media.grid_thw[0], media.grid_thw[1] // spec.merge_size, media.grid_thw[2] // spec.merge_size
    interval = 1.0
    if media.kind == "video" and spec.tokens_per_second is not None:
        interval = spec.tokens_per_second * (media.seconds_per_grid if media.seconds_per_grid is not None else 1.0)
    time = (torch.arange(t, dtype=torch.float32) * interval).long()
    grid = torch.meshgrid(time, torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([axis.reshape(-1) for axis in grid]) + start


def mrope_positions(length: int, spans: Sequence[tuple[int, int]], media: Sequence[MediaHandle], spec: PositionSpec) -> torch.Tensor:
    """Positions of a prompt of `length` tokens, [3, length] int64 (rows: time, height, width).

    Raises:
        ValueError: a span is not as long as its medium has tokens.
    """
    out: list[torch.Tensor] = []
    done, position = 0, 0
    for (start, end), handle in zip(spans, media, strict=True):
        text = start - done
        out.append((torch.arange(text) + position).expand(3, -1))
        position += text
        block = _block(position, handle, spec)
        if block.shape[1] != end - start:
            raise ValueError(f"visual span {start}:{end} has {end - start} tokens but its medium has {block.shape[1]}")
        out.append(block)
        if spec.rule == "max":
            position = int(block.max()) + 1
        else:
            position += max(handle.grid_thw[1], handle.grid_thw[2]) // spec.merge_size
        done = end
    out.append((torch.arange(length - done) + position).expand(3, -1))
    return torch.cat(out, dim=1)


def prompt_positions(prompt: Prompt, spec: PositionSpec) -> torch.Tensor:
    """`mrope_positions` of a prompt, [3, len(prompt.ids)]."""
    return mrope_positions(len(prompt.ids), prompt.spans, prompt.media, spec)


def extend(positions: torch.Tensor, tokens: int) -> torch.Tensor:
    """Prompt positions followed by those of `tokens` text tokens, [3, P + tokens].

    A chat template ends every prompt with text, so the last prompt position is the same on the three rows.
    """
    last = positions[:, -1:]
    if not bool((last == last[0]).all()):
        raise ValueError("the prompt ends inside a visual block; a response cannot follow it")
    return torch.cat([positions, last + 1 + torch.arange(tokens)], dim=1)
