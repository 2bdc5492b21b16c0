"""Patches of frames as bytes, and what a processor makes of their pixels: (pixel - mean) / deviation per channel, where they are used.

Bytes are a quarter of float32 in the store and on the way to the device. A processor scales every pixel by itself, so it does nothing else
if it gives these numbers, to the bit, for each of the 256 values in each channel; one that does gives its own float32 as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vlmrl.policy.pack import to_device


def raw_patches(frames: np.ndarray, *, patch: int, merge: int, temporal: int) -> np.ndarray:
    """Cut uint8 frames [T, H, W, 3] into patches.

    In the order of Qwen's processors: the patches of a merged token stand together. The last frame is repeated to a full temporal patch.

    Returns:
        uint8 [(T / temporal) * (H / patch) * (W / patch), 3 * temporal * patch * patch].
    """
    missing = -len(frames) % temporal
    if missing:
        frames = np.concatenate([frames, np.repeat(frames[-1:], missing, axis=0)])
    count, height, width, channels = frames.shape
    t, h, w = count // temporal, height // patch, width // patch
    x = frames.transpose(0, 3, 1, 2).reshape(t, temporal, channels, h // merge, merge, patch, w // merge, merge, patch)
    # [t, h / merge, w / merge, merge, merge, C, temporal, patch, patch]: the patches that a merger joins stand together
    x = x.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return np.ascontiguousarray(x).reshape(t * h * w, channels * temporal * patch * patch)


@dataclass(frozen=True, eq=False)
class Scale:
    """A processor's normalisation of pixels, per channel: (pixel - mean) / deviation."""

    mean_C: torch.Tensor
    """float32, in the unit of pixels."""
    std_C: torch.Tensor

    @staticmethod
    def of(processor: Any) -> Scale:
        """Read it from a processor, as transformers joins the two steps: mean and deviation are divided by the factor, not the pixels
        multiplied.
        """
        unit = 1.0 / processor.rescale_factor
        return Scale(torch.tensor(processor.image_mean) * unit, torch.tensor(processor.image_std) * unit)

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Scale uint8 patches [n, dim].

        Returns:
            float32 of the same shape, on the same device.
        """
        mean_C, std_C = (x if raw.device == x.device else to_device(x, raw.device) for x in (self.mean_C, self.std_C))
        x = raw.float().view(len(raw), len(mean_C), -1)  # [n, dim] -> [n, C, rest]: the channel is a patch's first axis
        return x.sub_(mean_C[:, None]).div_(std_C[:, None]).view(raw.shape)

    def is_of(self, processed: Callable[[np.ndarray], np.ndarray], *, frames: int, patch: int, merge: int, temporal: int) -> bool:
        """Whether these are the bits that a processor gives of so many frames which hold every value in every channel."""
        side = patch * merge * -(-16 // (patch * merge))
        draw = np.random.Generator(np.random.Philox(0))
        values = np.arange(frames * 6 * side * side) % 256
        shown = np.stack([draw.permutation(values) for _ in range(3)], -1).astype(np.uint8).reshape(frames, 2 * side, 3 * side, 3)
        own = self(torch.from_numpy(raw_patches(shown, patch=patch, merge=merge, temporal=temporal))).numpy()
        return np.array_equal(own.view(np.int32), processed(shown).view(np.int32))  # bits, so that -0.0 is no 0.0
