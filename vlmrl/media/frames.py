"""Reads videos that are given as pictures: a list or a folder of them, with stated times; the frames on screen are chosen as of a file.

The pictures of such a video travel as one piece of bytes (a bundle), so that it takes the way of a file: hashed, decoded here or in a
worker, cached. Its content is all pictures, with when each comes on screen; its name is no part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.media.access import IMAGE_BYTES, SUFFIXES, VIDEO_BYTES, check_path, list_folder, open_media, read_all
from vlmrl.media.decode import DecodedMedium
from vlmrl.media.headers import Planned, planned, read_image_size
from vlmrl.media.image import decode_image
from vlmrl.media.sampling import VideoInfo, check_bounds, frames_on_screen
from vlmrl.media.sizing import Sizing
from vlmrl.types import MediaRef

MAX_FRAMES = 10_000
"""Most pictures of one video."""

_HEAD = struct.Struct(">I")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A video as pictures, read and not yet decoded."""

    data: bytes
    """What `pictures_of` takes apart."""
    digest: str
    """SHA-256 of all pictures and times."""
    places: tuple[tuple[str, int, int], ...]
    """Path, size and time of modification of each picture."""


@dataclass(frozen=True, kw_only=True)
class FrameBundle:
    """The parts of a bundle."""

    names: list[str]
    times: np.ndarray
    """float64 [n], ascending from 0, in seconds."""
    end: float
    """When the last one leaves the screen."""
    files: list[bytes | memoryview]


def frames_of(ref: MediaRef, root: Path) -> tuple[MediaRef, ...]:
    """List the pictures of a video in order. Those of a folder come by name, in which digits count as numbers: `f9.jpg` before `f10.jpg`.

    Raises:
        MediaError: `forbidden`, `missing` or `unreadable` (the folder), `frames` (it holds something else, none or too many), or as many
            times as there are not pictures.
    """
    frames = ref.frames or tuple(MediaRef(kind="image", path=f"{ref.path}/{name}") for name in _listed(root, ref.path))
    if len(frames) > MAX_FRAMES:
        raise MediaError("frames", f"{ref.path}: {len(frames)} frames, the limit is {MAX_FRAMES}; leave out those that no model will see")
    if ref.times is not None and len(ref.times) != len(frames):
        raise MediaError("frames", f"{ref.path}: {len(ref.times)} times are stated for {len(frames)} frames")
    return frames


def _listed(root: Path, folder: str) -> list[str]:
    entries = list_folder(root, folder, most=2 * MAX_FRAMES)
    names = sorted((name for name in entries if not name.startswith(".")), key=lambda name: (_natural(name), name))
    other = [name for name in names if not name.lower().endswith(SUFFIXES)]
    if other:
        raise MediaError("frames", f"{folder}: holds {other[0][:100]!r}, which is no picture ({', '.join(SUFFIXES)}); keep frames alone")
    if not names:
        raise MediaError("frames", f"{folder}: the folder holds no picture ({', '.join(SUFFIXES)})")
    for name in names:
        check_path(f"{folder}/{name}")
    return names


def _natural(name: str) -> list[tuple[int, str]]:
    """Digits as numbers, all else as text."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name) if part]


def stated_times(ref: MediaRef, count: int) -> tuple[np.ndarray, float]:
    """Compute when the frames of a video come on screen, from what its row states.

    At `fps` every frame stays as long; with times of their own the last one stays as long as the others do on average.

    Returns:
        (when each frame comes on screen, float64 [count] in seconds; when the last one leaves it).
    """
    if ref.times is None:
        assert ref.fps is not None, "frames have times or fps: `data.row`"
        return np.arange(count) / ref.fps, count / ref.fps
    times = np.array(ref.times, dtype=np.float64)
    return times, float(times[-1]) + (float(times[-1]) / (count - 1) if count > 1 else 0.0)


def seen_places(ref: MediaRef, root: Path) -> tuple[tuple[str, int, int], ...] | None:
    """Find `Bundle.places` without opening a picture; None where opening tells what is wrong.

    Returns:
        (path, size in bytes, time of modification in nanoseconds) of each picture.

    Raises:
        MediaError: as `frames_of`.
    """
    found: list[tuple[str, int, int]] = []
    for frame in frames_of(ref, root):
        check_path(frame.path)
        path = os.path.join(root, frame.path)
        try:
            status = os.stat(path)
        except OSError:
            return None
        found.append((path, status.st_size, status.st_mtime_ns))
    return tuple(found)


def read_bundle(ref: MediaRef, root: Path) -> Bundle:
    """Read all pictures, decode none.

    Raises:
        MediaError: as `frames_of` and `media.access`; `too_large`, or `hash_mismatch` with a frame's own hash.
    """
    frames = frames_of(ref, root)
    times, end = stated_times(ref, len(frames))
    files: list[bytes] = []
    places: list[tuple[str, int, int]] = []
    total = 0
    for frame in frames:
        with open_media(root, frame.path, max_bytes=IMAGE_BYTES) as file:
            status = os.fstat(file.fileno())
            places.append((os.path.join(root, frame.path), status.st_size, status.st_mtime_ns))
            files.append(read_all(file, frame.path, max_bytes=IMAGE_BYTES))
        total += len(files[-1])
        # the cap of a video file, for all pictures together: each alone may be small
        if total > VIDEO_BYTES:
            raise MediaError("too_large", f"{ref.path}: the frames have more than {VIDEO_BYTES} bytes together")
        if frame.sha256 is not None and hashlib.sha256(files[-1]).hexdigest() != frame.sha256:
            raise MediaError("hash_mismatch", f"{frame.path}: content has another sha256 than the row expects, {frame.sha256}")
    clock = {"times": times.tolist(), "end": end, "sizes": [len(file) for file in files]}
    # names are left out: the same pictures under other names are the same content. Sizes are in, so that no two lists hash alike
    digest = hashlib.sha256(json.dumps(clock).encode() + b"\n")
    for file in files:
        digest.update(file)
    head = json.dumps({**clock, "names": [frame.path for frame in frames]}).encode()
    return Bundle(data=b"".join([_HEAD.pack(len(head)), head, *files]), digest=digest.hexdigest(), places=tuple(places))


def pictures_of(data: bytes) -> FrameBundle:
    """Take apart what `read_bundle` has put together."""
    (length,) = _HEAD.unpack_from(data)
    head = json.loads(data[_HEAD.size : _HEAD.size + length])
    view, at = memoryview(data), _HEAD.size + length
    files: list[bytes | memoryview] = []
    for size in head["sizes"]:
        files.append(view[at : at + size])
        at += size
    return FrameBundle(names=head["names"], times=np.array(head["times"], dtype=np.float64), end=float(head["end"]), files=files)


def same_sizes(sizes: Sequence[tuple[str, tuple[int, int]]]) -> tuple[int, int]:
    """Find the size that all frames have, which are given as (name, size).

    Returns:
        (H, W) in pixels.

    Raises:
        MediaError: `frames`, two sizes.
    """
    first_name, first = sizes[0]
    for name, size in sizes:
        if size != first:
            raise MediaError(
                "frames",
                f"{name} has {size[1]}x{size[0]} pixels, {first_name} has {first[1]}x{first[0]}; frames of a video have one size: "
                "cut or resize them ahead of time",
            )
    return first


def plan_frames(ref: MediaRef, root: Path, sizing: Sizing) -> Planned:
    """Plan a video that is given as pictures, as `headers.plan_medium` plans a file.

    All are opened, so that a missing one is found; of those that will be shown the headers are read.

    Raises:
        MediaError: as `read_bundle` and decoding, as far as headers show it.
    """
    frames = frames_of(ref, root)
    stamps, end = stated_times(ref, len(frames))
    # sides of 1: which times are asked for does not depend on them, and no header has been read yet
    requests, spacing = sizing.requests(VideoInfo(1, 1, end, len(frames)))
    places = frames_on_screen(stamps, requests)
    chosen = set(places.tolist())
    sizes: list[tuple[str, tuple[int, int]]] = []
    for number, frame in enumerate(frames):
        with open_media(root, frame.path, max_bytes=IMAGE_BYTES) as file:
            if number in chosen:
                sizes.append((frame.path, read_image_size(file, frame.path)))
    height, width = same_sizes(sizes)
    check_bounds(width, height, end, len(requests))
    height, width = sizing.target(height, width, frames=len(requests))
    grid = (len(requests) // sizing.temporal_patch_size, height // sizing.patch_size, width // sizing.patch_size)
    return planned(grid, sizing, spacing, stamps[places], end)


def decode_frames(data: bytes, sizings: Sequence[Sizing]) -> list[DecodedMedium]:
    """Decode a bundle, as `decode.decode_views` does a file: the pictures on screen at the times asked for; each is decoded once."""
    pictures = pictures_of(data)
    count = len(pictures.files)
    requests = [sizing.requests(VideoInfo(1, 1, pictures.end, count)) for sizing in sizings]
    places = [frames_on_screen(pictures.times, times).tolist() for times, _ in requests]
    size = None
    shown: list[dict[int, np.ndarray]] = [{} for _ in sizings]
    # each picture once, in the order of the video
    for place in sorted({place for of_view in places for place in of_view}):
        try:
            pixels = decode_image(bytes(pictures.files[place]))
        except MediaError as error:
            raise MediaError(error.reason, f"{pictures.names[place]}: {str(error).removeprefix(error.reason + ': ')}") from error
        height, width = pixels.shape[:2]
        if size is None:
            size = (height, width)
            for of_view in places:
                check_bounds(width, height, pictures.end, len(of_view))
        same_sizes([(pictures.names[0], size), (pictures.names[place], (height, width))])
        for of_view, sizing, own in zip(places, sizings, shown, strict=True):
            if place in of_view:
                own[place] = sizing.shown(pixels[None], frames=len(of_view))[0]
    assert size is not None, "the first frame is on screen at 0"
    return [
        DecodedMedium(
            frames=np.stack([own[place] for place in of_view]),
            size=size,
            times=pictures.times[of_view],
            duration=pictures.end,
            spacing=spacing,
        )
        for of_view, own, (_, spacing) in zip(places, shown, requests, strict=True)
    ]
