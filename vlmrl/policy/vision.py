"""Vision features, computed once per medium and cached under the version of the weights that they depend on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from vlmrl.policy.load import Policy
from vlmrl.types import MediaHandle


class Pixels(Protocol):
    """What features are computed from (`media.store.MediaStore`)."""

    def get_key(self, key: str) -> Any: ...


class VisionCache:
    """Features of media by (handle key, vision version), least recently used first out, within a byte budget.

    While the tower is frozen its version never changes, so a medium is encoded once per run. While it trains, the version moves
    with every update and old entries are dropped at once.
    """

    def __init__(self, pixels: Pixels, *, budget_bytes: int):
        self.pixels = pixels
        self.budget = budget_bytes
        self.patches_encoded = 0
        self._version = -1
        self._features: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._bytes = 0

    def features(self, policy: Policy, handles: Sequence[MediaHandle], *, train: bool) -> Mapping[str, torch.Tensor]:
        """Features [tokens, H] of every distinct medium. With `train` and a tower that trains they carry gradient and are not cached."""
        distinct = {handle.key: handle for handle in handles}
        if train and policy.vision_trains:
            return self._encode(policy, list(distinct.values()))
        if self._version != policy.vision_version:
            self._features.clear()
            self._bytes, self._version = 0, policy.vision_version
        missing = [handle for key, handle in distinct.items() if key not in self._features]
        out: dict[str, torch.Tensor] = {}
        if missing:
            with torch.no_grad():
                out.update(self._encode(policy, missing))
        for key in distinct:
            if key in out:
                self._keep(key, out[key])
            else:
                self._features.move_to_end(key)
                out[key] = self._features[key]
        return out

    def _keep(self, key: str, value: torch.Tensor) -> None:
        size = value.numel() * value.element_size()
        if size > self.budget:
            return
        self._features[key] = value
        self._bytes += size
        while self._bytes > self.budget:
            _, old = self._features.popitem(last=False)
            self._bytes -= old.numel() * old.element_size()

    def _encode(self, policy: Policy, handles: Sequence[MediaHandle]) -> dict[str, torch.Tensor]:
        """One pass of the tower per kind. Each medium attends only to itself, so batching does not mix them."""
        out: dict[str, torch.Tensor] = {}
        for kind in ("image", "video"):
            batch = [handle for handle in handles if handle.kind == kind]
            if not batch:
                continue
            values = torch.cat([torch.from_numpy(self.pixels.get_key(h.key).pixel_values) for h in batch]).to(policy.device)
            grid = torch.tensor([h.grid_thw for h in batch], device=policy.device)
            self.patches_encoded += values.shape[0]
            encode = policy.core.get_image_features if kind == "image" else policy.core.get_video_features
            with policy.autocast():
                parts = encode(values, grid, return_dict=True).pooler_output
            for handle, part in zip(batch, parts, strict=True):
                if part.shape[0] != handle.tokens:
                    raise RuntimeError(f"{handle.kind} {handle.key[:12]}: {handle.tokens} placeholder tokens but {part.shape[0]} features")
                out[handle.key] = part
        return out
