"""Computes M-RoPE positions. Everything that runs the model passes positions from here explicitly.

Text advances all three rows by one. A visual block that starts at p0 uses (p0 + time, p0 + row, p0 + column) over its merged
grid. Where text resumes after the block is the `rule`:

* `max`: at the largest position so far + 1. The model authors' own code, and what vLLM samples with. Default.
* `grid`: at p0 + max(rows, columns). What transformers 5.17 to 5.19 compute for Qwen2.5-VL; differs from `max` for videos whose
  temporal positions run past their spatial ones.

For images and for text the rules agree. Qwen3-VL writes the time before each temporal step of a video and gives the step a span of
its own, laid out like an image; there the rules agree too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """Which feature rows of which medium stand in which columns of a prompt, in the order of columns.

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
        t = 1
    if tokens != t * h * w:
        raise ValueError(
            f"visual span {span.start}:{span.end} has {tokens} tokens but its {media.kind} with grid {media.grid_thw} needs {t * h * w}"
            f"{' for each temporal step' if spec.per_step else ''}; was the prompt encoded for another model?"
        )
    interval = 1.0
    if media.kind == "video" and spec.tokens_per_second is not None:
        interval = spec.tokens_per_second * (media.seconds_per_grid if media.seconds_per_grid is not None else 1.0)
    time = (torch.arange(t, dtype=torch.float32) * interval).long()
    grid = torch.meshgrid(time, torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([axis.reshape(-1) for axis in grid]) + start


def mrope_positions(
    length: int, spans: Sequence[tuple[int, int]], media: Sequence[MediaHandle], spec: PositionSpec, owners: Sequence[int] = ()
) -> torch.Tensor:
    """Positions of a prompt of `length` tokens, [3, length] int64 (rows: time, height, width). `owners` as in `Prompt`.

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
        if spec.rule == "max":
            position = int(block.max()) + 1
        else:
            position += max(span.handle.grid_thw[1], span.handle.grid_thw[2]) // spec.merge_size
        done = span.end
    out.append((torch.arange(length - done) + position).expand(3, -1))
    return torch.cat(out, dim=1)


def prompt_positions(prompt: Prompt, spec: PositionSpec) -> torch.Tensor:
    """`mrope_positions` of a prompt, [3, len(prompt.ids)]."""
    return mrope_positions(len(prompt.ids), prompt.spans, prompt.media, spec, prompt.owners)


def extend(positions: torch.Tensor, tokens: int) -> torch.Tensor:
    """Prompt positions followed by those of `tokens` text tokens, [3, P + tokens].

    A chat template ends every prompt with text, so the last prompt position is the same on the three rows.
    """
    return torch.cat([positions, following(positions, tokens)], dim=1)


def following(positions: torch.Tensor, tokens: int) -> torch.Tensor:
    """Only those of the text tokens behind the prompt, [3, tokens]."""
    last = positions[:, -1:]
    if not bool((last == last[0]).all()):
        raise ValueError("the prompt ends inside a visual block; a response cannot follow it")
    return last + 1 + torch.arange(tokens)
