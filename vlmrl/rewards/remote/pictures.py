"""The pixels that the policy saw, as PNG files for a judge. No file is opened: frames come from the run's media store."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl.protocols import RewardContext
from vlmrl.types import Group


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of a request, with the line of text that stands before it."""

    label: str
    png: bytes
    digest: str
    """sha256 of label and PNG: part of the address of the verdict."""

    def part(self) -> dict[str, Any]:
        """As content of a chat message."""
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(self.png).decode()}}


class OnDemand(Mapping[str, Any]):
    """A mapping that makes its values when they are asked for: `RewardContext.media` over a media store, `fetch` being `get_key`."""

    def __init__(self, keys: tuple[str, ...], fetch: Callable[[str], Any]):
        self._keys = keys
        self._fetch = fetch

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return self._fetch(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def pictures(group: Group, ctx: RewardContext) -> tuple[Picture, ...]:
    """Every frame of every medium of the group's prompt, in order.

    Raises:
        ValueError: pixels of the prompt are not in `ctx.media`. A judge is never asked about pictures that it does not get.
    """
    sample, handles = group.prompt.sample, group.prompt.media
    if len(handles) != len(sample.media):
        raise ValueError(
            f"row '{sample.id}' ({sample.source}): {len(sample.media)} media but {len(handles)} of them processed; a judge with pictures "
            "needs prompts made by `data.encode`"
        )
    out: list[Picture] = []
    for number, handle in enumerate(handles, start=1):
        if handle.key not in ctx.media:
            raise ValueError(
                f"row '{sample.id}' ({sample.source}): the pixels of medium {number} ({handle.kind}) are not in the reward's context "
                "(`RewardContext.media`), so a judge cannot see what the policy saw"
            )
        medium = ctx.media[handle.key]
        for i, frame in enumerate(medium.frames):
            label = f"Image {number}:" if medium.times is None else f"Video {number}, frame at {float(medium.times[i]):.2f} s:"
            out.append(_picture(label, frame))
    return tuple(out)


def _picture(label: str, frame: np.ndarray) -> Picture:
    png = encode_png(frame)
    return Picture(label=label, png=png, digest=hashlib.sha256(label.encode() + b"\0" + png).hexdigest())


def encode_png(frame: np.ndarray) -> bytes:
    """uint8 [h, w, 3] as a lossless PNG.

    Raises:
        ValueError: another shape or type.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise ValueError(f"a picture must be uint8 [h, w, 3], got {frame.dtype} {list(frame.shape)}")
    height, width = frame.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, 0: none
    rows[:, 1:] = frame.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
