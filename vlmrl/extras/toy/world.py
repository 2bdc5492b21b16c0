"""Draws worlds of videos as real H.264 MP4 files, next to JSONL rows with exact ground truth.

A world is built in a temporary folder beside its place and renamed into it when complete, with a marker that holds the hash
of its recipe. Rows are byte-identical on every machine; the bytes of the videos depend on the encoder, so rows do not hash them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np

from vlmrl import fs
from vlmrl.extras.toy.picture import PAINT
from vlmrl.extras.toy.tasks import SPLITS, Event, Scene, Split, make_row, make_scene
from vlmrl.rng import generator

FORMAT = 4
"""Raise it when scenes, rows or pictures change, so that kept worlds are built anew."""
MARKER = "world.json"
CRF = "23"
NOISE = 6
"""Greatest pixel noise, in levels of 0 to 255."""


class WorldRecipe(Protocol):
    """The fields of `config.schema.ToyWorldSection`: videos per split, and the seed."""

    @property
    def pretrain(self) -> int: ...
    @property
    def sft(self) -> int: ...
    @property
    def train(self) -> int: ...
    @property
    def validation(self) -> int: ...
    @property
    def test(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ToyVideo:
    """One video and its row."""

    row: dict[str, Any]
    frames: Callable[[], Iterator[np.ndarray]]
    """uint8 RGB [height, width, 3], shown at `i / rate` seconds."""
    rate: int
    """Frames per second."""
    size: tuple[int, int]
    """Width, height in pixels."""


def grounding_clip(seed: int, split: Split, index: int) -> ToyVideo:
    """The video and the row of the world of temporal grounding at these coordinates."""
    scene = make_scene(seed, split, index)
    return ToyVideo(row=make_row(seed, scene), frames=lambda: render(scene, seed), rate=scene.rate, size=scene.size)


def make_world(
    out: Path,
    section: WorldRecipe,
    progress: Callable[[int, int], None] | None = None,
    *,
    splits: Sequence[Split] = SPLITS,
    clip: Callable[[int, Split, int], ToyVideo] = grounding_clip,
    kind: str | None = None,
) -> dict[str, Any]:
    """Build the world in `out`, unless it is there already; return its marker (`recipe`, `rows`, `videos`).

    `clip(seed, split, index)` gives each video and its row; `kind` is the name of what it makes where that is not temporal grounding.

    `progress(done, total)` is called after each video, from this thread. Only `splits` are made, each with the rows and pictures that it
    has in the whole world.

    Raises:
        FileExistsError: `out` is there and is not a world (a world of another recipe is replaced).
    """
    counts: dict[Split, int] = {split: int(getattr(section, split)) for split in splits}
    return install(
        out,
        world_hash(section, kind),
        lambda folder: _build(folder, counts, int(section.seed), clip, progress),
        media="videos",
        splits=splits,
    )


def install(
    out: Path,
    recipe: str,
    build: Callable[[Path], dict[str, Any]],
    *,
    media: Literal["videos", "images"],
    splits: Sequence[Split] = SPLITS,
) -> dict[str, Any]:
    """The world with the hash `recipe` in `out`: as it is there with these splits, or built by `build(folder)` beside it and renamed
    into place.

    `build` writes rows and files and returns the marker's `rows` (split -> hash) and `media` (split -> `count` and `bytes`).

    Raises:
        FileExistsError: `out` is there and is not a world.
    """
    if (known := usable(out, recipe, media, splits)) is not None:
        return known
    fs.mkdir(out.parent)
    building = out.parent / fs.temporary_name(out.name)
    try:
        marker = {"recipe": recipe, **build(building)}
        fs.write_text(building / MARKER, json.dumps(marker, sort_keys=True, indent=1) + "\n")
        if (known := usable(out, recipe, media, splits)) is not None:  # another process was faster
            fs.remove_tree(building)
            return known
        _put(building, out)
    except BaseException:
        fs.remove_tree(building)
        raise
    return marker


def world_hash(section: WorldRecipe, kind: str | None = None) -> str:
    """Hash of all that decides the rows and pictures of a world; names its folder in the cache."""
    recipe: dict[str, Any] = {} if kind is None else {"kind": kind}
    recipe |= {"format": FORMAT, "seed": int(section.seed), **{split: int(getattr(section, split)) for split in SPLITS}}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def render(scene: Scene, seed: int) -> Iterator[np.ndarray]:
    """The frames of a scene, uint8 RGB [height, width, 3], `duration * rate` of them at `i / rate` seconds."""
    width, height = scene.size
    rng = generator(seed, "toy-pixels", scene.split, scene.index)
    level = int(rng.integers(15, 60))
    field = rng.integers(-NOISE, NOISE + 1, size=(height + 16, width + 16, 3), dtype=np.int16)
    paths = [_path(event, scene, rng) for event in scene.events]
    yy, xx = np.mgrid[0:height, 0:width].astype(np.float32) + 0.5
    for i in range(round(scene.duration * scene.rate)):
        dy, dx = rng.integers(0, 17, size=2)
        frame = field[dy : dy + height, dx : dx + width] + np.int16(level)
        t = i / scene.rate
        for event, (centre, radius, velocity) in zip(scene.events, paths, strict=True):
            if event.start <= t < event.end:
                x, y = centre + velocity * (t - event.start)
                mask = _inside(event.shape, xx - x, yy - y, radius)
                frame[mask] += np.array(PAINT[event.color], dtype=np.int16) - np.int16(level)
        yield np.clip(frame, 0, 255).astype(np.uint8)


def encode_mp4(frames: Iterator[np.ndarray], rate: int, size: tuple[int, int], *, apart: int | None = None) -> bytes:
    """H.264 in MP4, yuv420p, one thread. Frame i is shown at i / rate seconds.

    Args:
        apart: every so many frames begin anew, at one quality, so that what they show depends on no other such part of the video.
    """
    import av  # heavy, and used here only

    buffer = io.BytesIO()
    with av.open(buffer, mode="w", format="mp4") as container:
        quality = {"crf": CRF} if apart is None else {"qp": CRF, "g": str(apart), "keyint_min": str(apart), "flags": "+cgop"}
        options = {"preset": "ultrafast", "threads": "1", **quality}
        stream = cast(Any, container.add_stream("libx264", rate=rate, options=options))
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, rate)
        for i, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = i
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def _path(event: Event, scene: Scene, rng: np.random.Generator) -> tuple[np.ndarray, float, np.ndarray]:
    """Centre at `event.start` [2], radius, velocity [2] in pixels (per second); the shape stays inside its quarter."""
    quarter = np.array(scene.size, dtype=np.float64) / 2
    radius = float(min(quarter) * rng.uniform(0.32, 0.42))
    low = quarter * np.array([event.quarter % 2, event.quarter // 2]) + radius
    high = low + quarter - 2 * radius
    first, last = rng.uniform(low, high), rng.uniform(low, high)
    return first, radius, (last - first) / (event.end - event.start)


def _inside(shape: str, x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Mask of the pixels of a shape; `x` and `y` are relative to its centre, y points down."""
    if shape == "square":
        return (np.abs(x) <= radius * 0.9) & (np.abs(y) <= radius * 0.9)
    if shape == "circle":
        return x * x + y * y <= radius * radius
    if shape == "triangle":
        return (np.abs(x) <= (y + radius) / 2) & (y <= radius)
    raise ValueError(f"shape '{shape}' cannot be drawn; known: square, circle, triangle")


def _build(
    folder: Path,
    counts: dict[Split, int],
    seed: int,
    clip: Callable[[int, Split, int], ToyVideo],
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    marker: dict[str, Any] = {"format": FORMAT, "rows": {}, "videos": {}}
    done, total = 0, sum(counts.values())

    def write_video(one: ToyVideo) -> int:
        data = encode_mp4(one.frames(), one.rate, one.size)
        # Not synced one by one: thousands of syncs cost more than drawing, and `_is_complete` finds files that a crash emptied.
        (folder / one.row["video"]).write_bytes(data)
        return len(data)

    # The encoder releases the interpreter lock; more threads than cores would only take memory.
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for split, count in counts.items():
            (folder / "videos" / split).mkdir(parents=True)
            clips = [clip(seed, split, i) for i in range(count)]
            size = 0
            for written in pool.map(write_video, clips):
                size += written
                done += 1
                if progress is not None:
                    progress(done, total)
            text = "".join(json.dumps(one.row) + "\n" for one in clips).encode()
            fs.write_bytes(folder / f"{split}.jsonl", text)
            marker["rows"][split] = hashlib.sha256(text).hexdigest()
            marker["videos"][split] = {"count": count, "bytes": size}
    return marker


def usable(out: Path, recipe: str, media: str, splits: Sequence[Split] = SPLITS) -> dict[str, Any] | None:
    """The marker of the world in `out` if it is this recipe's and has these splits undamaged.

    Raises:
        FileExistsError: what lies there was not made here, so it must not be replaced.
    """
    if not out.exists():
        return None
    if not (out / MARKER).is_file():
        if out.is_dir() and not any(out.iterdir()):
            return None
        raise FileExistsError(f"{out} is not a toy world (it has no {MARKER}); move it away or give another folder")
    try:
        marker = json.loads((out / MARKER).read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return None  # damaged: the world is built anew
    return marker if marker["recipe"] == recipe and _is_complete(out, marker, media, splits) else None


def _is_complete(folder: Path, marker: dict[str, Any], media: str, splits: Sequence[Split]) -> bool:
    """Whether the rows have their hashes and the media their number and bytes (a crash of the machine can empty files)."""
    for split in splits:
        rows = folder / f"{split}.jsonl"
        if split not in marker["rows"] or not rows.is_file() or hashlib.sha256(rows.read_bytes()).hexdigest() != marker["rows"][split]:
            return False
        sizes = [file.stat().st_size for file in (folder / media / split).glob("*")]
        if {"count": len(sizes), "bytes": sum(sizes)} != marker[media][split]:
            return False
    return True


def _put(building: Path, out: Path) -> None:
    """Rename the finished folder into place; what lies there is moved aside first and removed last."""
    aside = out.parent / fs.temporary_name(f"{out.name}-old")
    if out.exists():
        fs.rename(out, aside)
    fs.rename(building, out)
    fs.fsync_dir(out.parent)
    fs.remove_tree(aside)
