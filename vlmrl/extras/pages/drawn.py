"""An answer drawn on the pixels that the model saw, as a picture file: shapes in place, a time span as a bar under frames."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vlmrl import fs
from vlmrl.answers.marks import Mark, MarkedFrames, Marks
from vlmrl.errors import ConfigError
from vlmrl.extras.pages.kept.media import chosen
from vlmrl.extras.pages.overlay import answer_marks, target_of
from vlmrl.media.store import ProcessedMedia
from vlmrl.types import Sample

COLOUR, FAINT = (220, 30, 30), (150, 150, 150)
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
FRAMES = 8
"""Of a video that are drawn in a row, evenly spaced; as many that have shapes on them come to them."""
BAR = 28
"""Pixels of the strip below frames: times, and the span."""


def draw_answer(path: Path, sample: Sample, media: ProcessedMedia, answer: str | None) -> Marks:
    """Write the picture; what was drawn, and what was not and why (`Marks.problems`).

    Args:
        path: `.png`, `.jpg` or `.webp`.
        sample: its answer type and `meta.frame` say what the answer's numbers mean.

    Raises:
        ConfigError: another kind of file.
        StorageError: it cannot be written.
    """
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: a picture is written as one of {', '.join(SUFFIXES)}")
    if media.times is None:
        marks = answer_marks(target_of(sample, media.original_size), MarkedFrames(), answer)
        picture = _marked(media.frames[0], marks.shapes, 0)
    else:
        times = tuple(float(t) for t in media.times)
        marks = answer_marks(target_of(sample, media.original_size), MarkedFrames(indices=tuple(range(len(times))), times=times), answer)
        picture = _strip(media.frames, times, marks, media.duration)
    data = io.BytesIO()
    picture.save(data, format=kind)
    fs.write_bytes(path, data.getvalue())
    return marks


def _strip(frames: np.ndarray, times: Sequence[float], marks: Marks, duration: float | None) -> Image.Image:
    """Frames uint8 [T, h, w, 3] side by side, the time under each; below them the spans on a line of the whole video."""
    wanted = {mark.frame for mark in marks.shapes if mark.frame is not None}
    shown = sorted({*chosen(len(frames), FRAMES), *sorted(wanted)[:FRAMES]})
    height, width = frames.shape[1:3]
    out = Image.new("RGB", (width * len(shown), height + 2 * BAR), (255, 255, 255))
    draw = ImageDraw.Draw(out)
    for place, index in enumerate(shown):
        out.paste(_marked(frames[index], marks.shapes, index), (place * width, 0))
        inside = any(span.start <= times[index] <= span.end for span in marks.spans)
        draw.text((place * width + 4, height + 6), f"{times[index]:.1f} s", fill=COLOUR if inside else (0, 0, 0))
    end = max(duration or 0.0, times[-1], 1e-9)
    top = height + BAR
    draw.rectangle((0, top + 10, out.width - 1, top + 14), fill=FAINT)
    for span in marks.spans:
        left, right = (round(min(max(t / end, 0.0), 1.0) * (out.width - 1)) for t in (span.start, span.end))
        draw.rectangle((left, top + 6, max(right, left + 1), top + 18), fill=COLOUR)
    return out


def _marked(frame: np.ndarray, shapes: Sequence[Mark], index: int) -> Image.Image:
    """One frame uint8 [h, w, 3] with the shapes that are on it."""
    picture = Image.fromarray(frame).convert("RGB")
    draw = ImageDraw.Draw(picture)
    line = max(2, round(min(picture.size) / 150))
    for mark in shapes:
        if mark.frame not in (None, index):
            continue
        points = [(round(x / 100 * (picture.width - 1)), round(y / 100 * (picture.height - 1))) for x, y in mark.points]
        if mark.kind == "box":
            draw.rectangle((*points[0], *points[1]), outline=COLOUR, width=line)
        elif mark.kind == "point":
            (x, y), r = points[0], 3 * line
            draw.ellipse((x - r, y - r, x + r, y + r), outline=FAINT if mark.negative else COLOUR, width=line)
            draw.point((x, y), fill=COLOUR)
        elif mark.kind == "polygon":
            draw.line([*points, points[0]], fill=COLOUR, width=line)
        else:
            for first, second in zip(points[::2], points[1::2], strict=True):
                draw.rectangle((*first, *second), outline=COLOUR)
    return picture
