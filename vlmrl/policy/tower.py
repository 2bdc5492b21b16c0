"""Passes of the vision tower: which media go through it together, whole or by chunks of a video's temporal steps.

Attention of the Qwen-VL towers never crosses a temporal step, positions along time do not enter it, and a merger joins patches of one
step. So the features of a video are those of its steps, computed in any number of passes. With `model.vision_chunk_patches` a pass holds
whole steps of at most that many patches; a step, and so a picture, is never cut. While the tower trains, backward runs each such pass a
second time, so that one pass at a time is in memory; between them only pixels of the host and the features are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from vlmrl.policy.model import Policy
from vlmrl.types import MediaHandle, MediaKind

Parts = tuple[torch.Tensor, ...]
"""Merged features, and those of each deepstack level."""


class Pixels(Protocol):
    """What features are computed from (`media.store.MediaStore`)."""

    def get_key(self, key: str) -> Any: ...


class Piece(NamedTuple):
    """Temporal steps [first, last) of a medium."""

    handle: MediaHandle
    first: int
    last: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Of these steps."""
        return (self.last - self.first, *self.handle.grid_thw[1:])

    @property
    def patches(self) -> int:
        return (self.last - self.first) * self.step

    @property
    def step(self) -> int:
        """Patches of one temporal step."""
        return self.handle.grid_thw[1] * self.handle.grid_thw[2]


def passes_of(handles: Sequence[MediaHandle], bound: int | None) -> list[list[Piece]]:
    """What goes through the tower in each pass: all media of a kind, or with a bound of patches pieces of them, in their order.

    Each medium attends only to itself, so batching does not mix them.
    """
    out: list[list[Piece]] = []
    for kind in ("image", "video"):
        whole = [Piece(handle, 0, handle.grid_thw[0]) for handle in handles if handle.kind == kind]
        if whole:
            out += [whole] if bound is None else _bounded(whole, bound)
    return out


def _bounded(whole: Sequence[Piece], bound: int) -> list[list[Piece]]:
    out: list[list[Piece]] = [[]]
    room = bound
    for handle, at, end in whole:
        while at < end:
            step = Piece(handle, at, end).step
            fits = min(end - at, room // step)
            if fits < 1 and out[-1]:
                out.append([])
                room = bound
                continue
            piece = Piece(handle, at, at + max(1, fits))  # a step that is larger than the bound has a pass of its own
            out[-1].append(piece)
            room -= piece.patches
            at = piece.last
    return out


def encode(policy: Policy, pieces: Sequence[Piece], pixels: Pixels, *, train: bool) -> list[Parts]:
    """Features of each piece, from one pass.

    Raises:
        RuntimeError: the tower did not return deepstack features by medium.
    """
    kind = pieces[0].handle.kind
    held = [pixels.get_key(piece.handle.key).pixel_values[piece.first * piece.step : piece.last * piece.step] for piece in pieces]

    def values() -> torch.Tensor:
        return torch.cat([torch.from_numpy(np.ascontiguousarray(part)) for part in held])

    flat = run(policy, kind, values, [piece.grid for piece in pieces], train=train)
    levels = len(flat) // len(pieces)
    return [tuple(flat[n * levels : (n + 1) * levels]) for n in range(len(pieces))]


def run(
    policy: Policy, kind: MediaKind, values: Callable[[], torch.Tensor], grids: Sequence[tuple[int, int, int]], *, train: bool
) -> Parts:
    """One pass of the tower over the patches that `values` gives: the parts of the first medium, then those of the second, and so on.

    Chunks that train are recomputed in backward. It ends with the last tensor that is needed, before the hooks that under ZeRO-3 would take
    away the weights of the module whose gradient comes next.
    """
    call = policy.core.get_image_features if kind == "image" else policy.core.get_video_features

    def passed() -> Parts:
        grid = torch.tensor(grids, device=policy.device)
        with policy.autocast():
            return _parts(call(values().to(policy.device), grid, return_dict=True), len(grids))

    if policy.vision_chunk_patches is None or not (train and policy.vision_trains):
        return passed()
    out: Any = checkpoint(passed, use_reentrant=False, preserve_rng_state=False)  # no tower has dropout
    return out


def _parts(encoded: Any, count: int) -> Parts:
    """What the tower returned, medium after medium. Deepstack features come per layer and then per medium; most families have none."""
    layers = getattr(encoded, "deepstack_features", None) or ()
    for number, layer in enumerate(layers):
        if isinstance(layer, torch.Tensor) or len(layer) != count:
            raise RuntimeError(f"deepstack layer {number}: expected one tensor for each of {count} media, got {type(layer).__name__}")
    return tuple(part for n, merged in enumerate(encoded.pooler_output) for part in (merged, *(layer[n] for layer in layers)))
