"""Finds in which unit spans of time are: in which of them they lie in their videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from vlmrl.errors import ConfigError, MediaError
from vlmrl.extras.starter.look import MOST, Look
from vlmrl.types import Sample

VIDEOS = 50
"""Videos whose lengths are looked up."""
LATE = 2.0
"""Seconds that a span may end behind its video, as `data.gold` takes it."""


def unit_of(look: Look, settings: Mapping[str, Any], media_dir: Path) -> tuple[dict[str, Any], str | None]:
    """What the source is to say of the unit of its times, and the finding; nothing where the times carry their unit.

    Raises:
        ConfigError: several units fit alike, or none, with the options that decide it.
    """
    if settings.get("time_unit") or look.read(settings, media_dir).share("time_unit") == 0:
        return {}, None
    spans = _spans(look.read({**settings, "time_unit": "s"}, media_dir).good, look.folder or media_dir)
    if not spans:
        return {"time_unit": "s"}, "taken for seconds, since the length of no video is known; time_unit says another unit"
    ends, longest = [end for end, _, _ in spans], max(length for _, length, _ in spans)
    shown = f"spans end at {min(ends):g} to {max(ends):g}, videos are up to {longest:.4g} s long"
    if max(ends) <= 1 and median(length for _, length, _ in spans) > 3:
        raise ConfigError(f"times: {shown}: shares of a video are not read; write seconds, or say that they are: time_unit=s")
    if _fits(end <= length + min(LATE, 0.15 * length) for end, length, _ in spans):
        return {"time_unit": "s"}, f"{shown}: seconds"
    ways: dict[str, tuple[dict[str, Any], str]] = {}
    if _fits(end <= frames for end, _, frames in spans):
        rates = {round(frames / length, 2) for _, length, frames in spans}
        if len(rates) == 1:
            (rate,) = rates
            ways["frames"] = {"time_unit": "frames", "time_fps": float(rate)}, f"{shown} with {rate:g} frames each second: frames"
    if _fits(end <= 1000 * (length + LATE) for end, length, _ in spans):
        ways["ms"] = {"time_unit": "ms"}, f"{shown}: milliseconds"
    if len(ways) == 1:
        return next(iter(ways.values()))
    how = "time_unit=ms" + (f", or time_unit=frames time_fps={ways['frames'][0]['time_fps']:g}" if "frames" in ways else "")
    raise ConfigError(
        f"times: {shown}: no seconds"
        + (f"; say what they count, behind the command: {how}" if ways else ", nor milliseconds or frames; are these the right videos?")
    )


def _fits(tests: Any) -> bool:
    found = list(tests)
    return sum(found) >= (1 - MOST) * len(found)


def _spans(samples: Sequence[Sample], folder: Path) -> list[tuple[float, float, int]]:
    """(end, length of the video, its frames) of rows with one video whose header can be read."""
    from vlmrl.media.video import probe_video

    known: dict[str, tuple[float, int] | None] = {}
    out: list[tuple[float, float, int]] = []
    for sample in samples:
        ref = sample.media[0] if len(sample.media) == 1 else None
        if ref is None or ref.as_frames or ref.kind != "video":
            continue
        if ref.path not in known:
            if len(known) == VIDEOS:
                continue
            try:
                info = probe_video(folder / ref.path)
                known[ref.path] = (info.duration, info.n_frames)
            except MediaError:  # `check` says what is wrong with it
                known[ref.path] = None
        found = known[ref.path]
        if found is not None:
            out.append((float(sample.gt["time"][1]), *found))
    return out
