"""Keeps the pixels that a model saw beside the records of a run or an evaluation, and reads both for a page."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.steps import TrueStep, true_steps
from vlmrl.extras.pages.overlay import MarkedFrames, Target, Unit, target_of
from vlmrl.media.store import ProcessedMedia
from vlmrl.types import CoordinateFrame, Sample

MAX_STRIP_PIXELS = 1_500_000
"""Pixels kept of one question. Longer videos keep evenly spaced frames, at the size at which the model saw them."""


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The pixels that the model saw of one question."""

    sample_id: str
    question: str
    gold: tuple[float, float] | None
    """Seconds."""
    duration: float | None
    """Seconds."""
    times: tuple[float, ...] | None
    """Seconds of each frame kept; None for images."""
    size: tuple[int, int]
    """(height, width) of a frame in pixels."""
    count: int
    """Frames kept."""
    total: int
    """Frames that the model saw."""
    strip: str
    """The kept frames side by side, as PNG in base64."""
    target: Target | None = None
    """What the row says of the answer, for drawing it; None in files from before it was kept."""
    steps: tuple[TrueStep, ...] = ()
    """Of the row's true thought, where it states them."""

    @property
    def shown(self) -> MarkedFrames:
        """The kept frames, for `pages.overlay`."""
        return MarkedFrames(indices=tuple(kept_frames(self.total, self.size[0] * self.size[1])), times=self.times)


def read_frames(folder: Path, records: Iterable[Sequence[Record]]) -> list[Frames]:
    """The frames in a folder, in the order in which the records first name their samples; none where there is no such folder.

    Raises:
        StorageError: a file is damaged.
    """
    place = {record.sample_id: n for rows in records for n, record in enumerate(rows)}
    frames = [_read_frames(file) for file in sorted(folder.glob("*.json"))]
    return sorted(frames, key=lambda f: (place.get(f.sample_id, len(place)), f.sample_id))


def save_media(folder: Path, sample: Sample, media: ProcessedMedia) -> Path:
    """Keep one medium of a row as the model saw it, with what the row says of the answer. `folder` is `<run>/eval/frames`, or
    `<out>/frames` of an evaluation.

    Raises:
        StorageError: it cannot be written.
    """
    return write_frames(folder, frames_of(sample, media))


def frames_of(sample: Sample, media: ProcessedMedia) -> Frames:
    """One medium of a row as the model sees it."""
    return make_frames(
        sample.id,
        frames=media.frames,
        times=media.times,
        question=sample.question,
        gold=sample.gt.get("time"),
        duration=media.duration,
        target=target_of(sample, media.original_size),
        steps=true_steps(sample),
    )


def make_frames(
    sample_id: str,
    *,
    frames: np.ndarray,
    times: Sequence[float] | np.ndarray | None,
    question: str,
    gold: Sequence[float] | None,
    duration: float | None,
    target: Target | None = None,
    steps: Sequence[TrueStep] = (),
) -> Frames:
    """The pixels that the model saw of one question, for a page.

    Args:
        frames: uint8 [T, h, w, 3]; times: [T] in seconds, None for images; gold: (start, end) in seconds.
        target: what the row says of the answer (`overlay.target_of`), so that it can be drawn.
        steps: of the row's true thought.

    Raises:
        ValueError: another shape or type, or not one time per frame.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.shape[0]:
        raise ValueError(f"sample '{sample_id}': frames are {frames.dtype} {list(frames.shape)}, expected uint8 [T, h, w, 3]")
    if times is not None and len(times) != len(frames):
        raise ValueError(f"sample '{sample_id}': {len(times)} times for {len(frames)} frames")
    kept = kept_frames(len(frames), frames.shape[1] * frames.shape[2])
    return Frames(
        sample_id=sample_id,
        question=question,
        gold=None if gold is None else (float(gold[0]), float(gold[1])),
        duration=None if duration is None else float(duration),
        times=None if times is None else tuple(float(times[i]) for i in kept),
        size=(int(frames.shape[1]), int(frames.shape[2])),
        count=len(kept),
        total=len(frames),
        strip=base64.b64encode(_png(np.concatenate([frames[i] for i in kept], axis=1))).decode(),
        target=target,
        steps=tuple(steps),
    )


def write_frames(folder: Path, frames: Frames) -> Path:
    """Write frames to a file of their own, unless it holds just these.

    Raises:
        StorageError: it cannot be written.
    """
    path = folder / f"{safe_name(frames.sample_id)}.json"
    data = json.dumps(dataclasses.asdict(frames), sort_keys=True).encode()
    if not path.exists() or path.read_bytes() != data:
        fs.mkdir(folder)
        fs.write_bytes(path, data)
    return path


def kept_frames(count: int, pixels: int) -> list[int]:
    """Which of `count` frames of `pixels` pixels each are kept: all, or evenly spaced ones, the first and the last among them."""
    most = min(count, max(2, MAX_STRIP_PIXELS // max(1, pixels)))
    if most >= count:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def safe_name(sample_id: str) -> str:
    """A file name for any id: readable, and unique by its hash."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", sample_id).strip(".")[:60] + "-" + hashlib.sha256(sample_id.encode()).hexdigest()[:10]


def _png(image: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG")
    return buffer.getvalue()


def _read_frames(path: Path) -> Frames:
    value = _json(path)
    try:
        return Frames(
            sample_id=value["sample_id"],
            question=value["question"],
            gold=None if value["gold"] is None else (float(value["gold"][0]), float(value["gold"][1])),
            duration=value["duration"],
            times=None if value["times"] is None else tuple(float(t) for t in value["times"]),
            size=(int(value["size"][0]), int(value["size"][1])),
            count=int(value["count"]),
            total=int(value["total"]),
            strip=base64.b64encode(base64.b64decode(value["strip"], validate=True)).decode(),
            target=None if value.get("target") is None else _read_target(value["target"]),
            steps=tuple(TrueStep(time=float(step["time"]), text=str(step["text"])) for step in value.get("steps", [])),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StorageError(f"{path}: not frames of a question ({error!r}); remove the file and write the report again") from error


def _read_target(value: dict[str, Any]) -> Target:
    frame, unit, size = value["frame"], value["unit"], value["size"]
    if frame not in (None, *get_args(CoordinateFrame)) or unit not in (None, *get_args(Unit)):
        raise ValueError(f"frame {frame!r} or unit {unit!r} is not known")
    return Target(
        answer_type=str(value["answer_type"]),
        gt=dict(value["gt"]),
        frame=frame,
        size=None if size is None else (float(size[0]), float(size[1])),
        pictures=int(value["pictures"]),
        unit=unit,
        problems=tuple(str(text) for text in value["problems"]),
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise StorageError(f"{path}: not JSON: {error}") from error
