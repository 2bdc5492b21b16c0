"""What a policy would have said without its pixels: the media of prompts with patches blackened, and prompts without media.

`MaskedView` gives a prompt's media under other keys, and their pixels. A key is that of the masked frames themselves, made by
`MediaStore.put` of the frames that the store has under the prompt's own key. So what is masked is what the policy was shown and rewarded
for, and a file that has changed since is the store's error. Which patches are black is a function of what `draw` gives for the prompt's
key. Sizes, token counts and times stay, so the prompt's ids do too.

Ours: in a video the same patches are black in every frame. Where each frame has its own, what one hides the next one shows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vlmrl.algo.ratio import MAX_LOG_RATIO
from vlmrl.types import MediaHandle, MediaKind, Prompt

MOST = 10.0
"""The authors' bound of an estimate of the divergence at a token, in nats."""


class ShownMedium(Protocol):
    """What is read of a medium that the policy is shown (`media.store.ProcessedMedia`)."""

    @property
    def handle(self) -> MediaHandle: ...

    @property
    def frames(self) -> np.ndarray: ...

    @property
    def times(self) -> np.ndarray | None: ...


class ShownMedia(Protocol):
    """The part of `media.store.MediaStore` that masks need."""

    temporal_patch_size: int

    def get_key(self, key: str) -> ShownMedium: ...

    def put(self, frames: np.ndarray, kind: MediaKind, *, times: np.ndarray | None = None, spacing: float | None = None) -> ShownMedium: ...


def blackened(frames: np.ndarray, hidden: np.ndarray, patch: int) -> np.ndarray:
    """Blacken patches of frames.

    Args:
        frames: uint8 [T, h, w, 3].
        hidden: bool [rows, columns] of the patches, from the upper left; those at the lower and the right edge may be cut.
        patch: their side in pixels.

    Returns:
        uint8 [T, h, w, 3], the same patches black in each frame; a copy.
    """
    height, width = frames.shape[1:3]
    black = hidden.repeat(patch, axis=0).repeat(patch, axis=1)[:height, :width]
    return np.where(black[None, :, :, None], np.uint8(0), frames)


@dataclass
class MaskedView:
    """Media with a share of their patches blackened. It is the source of pixels of a `VisionCache`, and needs no cache of its own."""

    store: ShownMedia
    patch: int
    share: float
    draw: Callable[[str], np.random.Generator]
    """Key of a medium -> the numbers that say which of its patches are black."""
    origin: dict[str, MediaHandle] = field(default_factory=dict[str, MediaHandle])
    """Key of a masked medium -> the medium that it was made of."""
    _made: dict[str, MediaHandle] = field(default_factory=dict[str, MediaHandle])

    def of(self, prompt: Prompt) -> Prompt:
        """Make the prompt with masked media: the same ids, other keys. A medium is masked once, however many prompts show it.

        Raises:
            MediaError: a medium's file is gone or has other content by now.
            RuntimeError: a masked medium has another size or time than its own.
        """
        for handle in prompt.media:
            if handle.key not in self._made:
                made = self._masked(handle).handle
                self._made[handle.key], self.origin[made.key] = made, handle
        return dataclasses.replace(prompt, media=tuple(self._made[handle.key] for handle in prompt.media))

    def get_key(self, key: str) -> ShownMedium:
        """Look up a masked medium; one that has left the store is made again.

        Raises:
            KeyError: this view did not make it.
            RuntimeError: it comes out otherwise than before.
        """
        try:
            return self.store.get_key(key)
        except KeyError:
            entry = self._masked(self.origin[key])
            if entry.handle.key != key:
                raise RuntimeError(f"masked medium {key} came out as {entry.handle.key} when it was made again") from None
            return entry

    def _masked(self, handle: MediaHandle) -> ShownMedium:
        seen = self.store.get_key(handle.key)
        rows, columns = (math.ceil(side / self.patch) for side in seen.frames.shape[1:3])
        hidden = self.draw(handle.key).random((rows, columns)) < self.share
        step = handle.seconds_per_grid
        spacing = None if step is None else step / self.store.temporal_patch_size
        entry = self.store.put(blackened(seen.frames, hidden, self.patch), handle.kind, times=seen.times, spacing=spacing)
        if dataclasses.replace(entry.handle, key=handle.key) != handle:
            raise RuntimeError(f"masked medium: {entry.handle} of {handle}; only its key may differ")
        return entry


def unseen(prompt: Prompt) -> Prompt:
    """Make the prompt without its media: their placeholders are left out, all other ids stay."""
    out = {column for start, end in prompt.spans for column in range(start, end)}
    kept = [column for column in range(len(prompt.ids)) if column not in out]
    kinds = {name: tuple(values[column] for column in kept) for name, values in prompt.kinds.items()}
    return dataclasses.replace(prompt, ids=tuple(prompt.ids[column] for column in kept), media=(), spans=(), owners=(), kinds=kinds)


def dependency(logp_NT: Tensor, without_NT: Tensor) -> Tensor:
    """Estimate at each token how far the policy is from what it would be without these pixels: exp(d) - d - 1 with
    d = log-prob without less log-prob with them, within +-20; at most 10.

    Returns:
        float64 [N, T], in nats; NaN where either is, as in rows without media.
    """
    d_NT = (without_NT.double() - logp_NT.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (torch.expm1(d_NT) - d_NT).clamp(max=MOST)
