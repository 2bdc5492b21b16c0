"""Tools for looking again at the media of a row: `zoom` into a picture, `frames` of a span of its video, `read_text` in a picture.

A tool is a function of the row's media and a call's arguments. All look at the file as it is, not at what a prompt showed of it: a crop
is of the whole picture's pixels, text is read in them, and frames have the size of the video. What they show goes through the store like
any other picture, so that it is resized by the same rule. A picture is decoded once, so is each span of a video, and a box is read once,
for as long as it fits into a budget.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.extras.agents import ocr
from vlmrl.extras.agents.calls import Call, Unusable, number, whole
from vlmrl.extras.agents.parts import SIDE, DistinctFrames, crop, frames_at, pixel_box, video_seconds
from vlmrl.extras.toy.picture import png
from vlmrl.media.access import IMAGE_BYTES, VIDEO_BYTES, read_media
from vlmrl.media.frames import read_bundle
from vlmrl.media.image import decode_image
from vlmrl.types import MediaKind, MediaRef

BUDGET = 512 << 20
"""Bytes of decoded originals that a process keeps."""
V = TypeVar("V")


class Originals:
    """Decoded originals by content, within a budget; the least recently used go first. One per process, for one thread."""

    def __init__(self, budget: int = BUDGET):
        self.budget = budget
        self.decoded: Counter[str] = Counter()
        """How often something was made: `picture`, `span`, `text`."""
        self._kept: OrderedDict[object, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def picture(self, digest: str, data: bytes) -> np.ndarray:
        """All pixels of a picture, uint8 [H, W, 3].

        Raises:
            MediaError: as `media.image.decode_image`.
        """
        return self._get("picture", (digest,), lambda: decode_image(data), lambda pixels: pixels.nbytes)

    def span(self, digest: str, data: bytes, seconds: tuple[float, ...], *, bundled: bool) -> DistinctFrames:
        """The frames on screen at these times.

        Raises:
            MediaError: as `agents.parts.frames_at`.
        """
        return self._get("span", (digest, seconds), lambda: frames_at(data, seconds, bundled=bundled), lambda shown: shown.frames.nbytes)

    def text(self, digest: str, data: bytes, box: tuple[float, ...]) -> tuple[str, ...]:
        """The lines of text in a box of a picture.

        Raises:
            MediaError: as `picture`.
            ConfigError: nothing is installed that reads.
        """

        def made() -> tuple[str, ...]:
            return ocr.read(crop(self.picture(digest, data), box))

        return self._get("text", (digest, box), made, lambda lines: sum(map(len, lines)))

    def _get(self, what: str, key: tuple[object, ...], make: Callable[[], V], weigh: Callable[[V], int]) -> V:
        found = self._kept.get((what, *key))
        if found is not None:
            self._kept.move_to_end((what, *key))
            return found[0]
        made = make()
        self.decoded[what] += 1
        size = weigh(made)
        if size <= self.budget:
            self._kept[(what, *key)] = made, size
            self._bytes += size
            while self._bytes > self.budget:
                _, (_, old) = self._kept.popitem(last=False)
                self._bytes -= old
        return made


@dataclass(frozen=True, kw_only=True)
class Medium:
    """One medium of a row, read and not yet decoded."""

    kind: MediaKind
    data: bytes
    """The file; of a video given as pictures what `media.frames.read_bundle` makes of them."""
    digest: str
    bundled: bool = False
    seconds: float | None = None
    """Of a video."""


def read_medium(ref: MediaRef, root: Path) -> Medium:
    """Read a medium of a row.

    Raises:
        MediaError: not allowed, not there, or with another hash than the row expects.
    """
    if ref.as_frames:
        bundle = read_bundle(ref, root)
        return Medium(kind="video", data=bundle.data, digest=bundle.digest, bundled=True, seconds=video_seconds(bundle.data, bundled=True))
    data = read_media(root, ref.path, max_bytes=IMAGE_BYTES if ref.kind == "image" else VIDEO_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    if ref.sha256 is not None and ref.sha256.lower() != digest:
        raise MediaError("hash_mismatch", f"{ref.path}: content has sha256 {digest}, the row expects {ref.sha256}")
    return Medium(kind=ref.kind, data=data, digest=digest, seconds=None if ref.kind == "image" else video_seconds(data))


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What a call shows."""

    text: str
    screens: tuple[bytes, ...]
    """Files of pictures (PNG)."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What calls may ask for."""

    frames: int = 8
    """Most frames of a call."""
    ratio: float = 4.0
    """Longest side of a crop over its shortest; thinner ones do not fit into few visual tokens."""
    characters: int = 1000
    """Most of a text that was read."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as rows are given it."""

    kind: MediaKind
    """Of the media that it looks at; rows without any are not offered it."""
    usage: Callable[[int, Limits], str]
    """(number of such media, limits) -> a sentence that tells a policy how to call it."""
    arguments: tuple[str, ...]
    run: Callable[[Sequence[Medium], Mapping[str, Any], Limits, Originals], Looked]
    """(media of its kind, arguments, ...). Raises `Unusable` where they ask for what is not there."""


def zoom(media: Sequence[Medium], arguments: Mapping[str, Any], limits: Limits, originals: Originals) -> Looked:
    """The box of a picture (thousandths of its sides), at the size of the file.

    Raises:
        Unusable: the box is none, reaches outside, has no area or is too thin.
        MediaError: the picture cannot be decoded.
    """
    which, box = whole(arguments, "picture", 1, 1, len(media)), _box(arguments)
    pixels = originals.picture(media[which - 1].digest, media[which - 1].data)
    x1, y1, x2, y2 = pixel_box(box, *pixels.shape[:2])
    if max(x2 - x1, y2 - y1) > limits.ratio * min(x2 - x1, y2 - y1):
        raise Unusable(f"The box is too thin: one side of it may be at most {limits.ratio:g} times the other, in pixels.")
    of = f" of picture {which}" if len(media) > 1 else ""
    return Looked(text=boxed(box, of), screens=(png(crop(pixels, box)),))


def read_text(media: Sequence[Medium], arguments: Mapping[str, Any], limits: Limits, originals: Originals) -> Looked:
    """The text in the box of a picture (thousandths of its sides; the whole picture without one), at the size of the file.

    Raises:
        Unusable: the box is none, reaches outside or has no area.
        MediaError: the picture cannot be decoded.
        ConfigError: nothing is installed that reads.
    """
    which = whole(arguments, "picture", 1, 1, len(media))
    box = _box(arguments) if "box" in arguments else [0.0, 0.0, float(SIDE), float(SIDE)]
    lines = originals.text(media[which - 1].digest, media[which - 1].data, tuple(box))
    of = f" of picture {which}" if len(media) > 1 else ""
    if not lines:
        return Looked(text=f"{boxed(box, of)} There is no text in it.", screens=())
    text = "\n".join(lines)
    cut = f"\n(the first {limits.characters} of {len(text)} characters)" if len(text) > limits.characters else ""
    return Looked(text=f"{boxed(box, of)} The text in it:\n{text[: limits.characters]}{cut}", screens=())


def _box(arguments: Mapping[str, Any]) -> list[float]:
    """A call's box in thousandths of the sides.

    Raises:
        Unusable: it is none, reaches outside or has no area.
    """
    given = arguments.get("box")
    if not isinstance(given, list) or len(given) != 4:  # pyright: ignore[reportUnknownArgumentType] (JSON)
        raise Unusable("The argument 'box' must be four numbers: [x1, y1, x2, y2].")
    named: dict[str, Any] = dict(zip(("x1", "y1", "x2", "y2"), given, strict=True))  # pyright: ignore[reportUnknownArgumentType]
    box = [number(named, name) for name in named]
    if not all(0 <= value <= SIDE for value in box):
        raise Unusable(f"The box reaches outside the picture: coordinates are from 0 to {SIDE}.")
    if box[0] >= box[2] or box[1] >= box[3]:
        raise Unusable("The box has no area: x1 must be less than x2, and y1 less than y2.")
    return box


def frames(media: Sequence[Medium], arguments: Mapping[str, Any], limits: Limits, originals: Originals) -> Looked:
    """Frames of a span of a video, evenly from its start to its end, each with the time at which it comes on screen.

    Raises:
        Unusable: the span is none or reaches outside the video.
        MediaError: the video cannot be decoded.
    """
    which = whole(arguments, "video", 1, 1, len(media))
    count = whole(arguments, "count", limits.frames, 1, limits.frames)
    start, end = number(arguments, "start"), number(arguments, "end")
    medium = media[which - 1]
    assert medium.seconds is not None
    # what a policy is told of the length is rounded
    if not 0 <= start < end <= medium.seconds + 0.05:
        raise Unusable(f"The span must lie within the video, from 0 to {medium.seconds:.1f} seconds, and start before it ends.")
    shown = originals.span(medium.digest, medium.data, even_times(start, min(end, medium.seconds), count), bundled=medium.bundled)
    of = f" of video {which}" if len(media) > 1 else ""
    return Looked(text=f"Frames{of} at {times_text(shown.times)}.", screens=tuple(png(frame) for frame in shown.frames))


def introduced(seconds: float, times: np.ndarray) -> str:
    """What is told of a video with the frames that it is shown by at first."""
    return f"A video of {seconds:.1f} seconds, shown at {times_text(times)}."


def overview_times(seconds: float, count: int) -> tuple[float, ...]:
    """When these frames are asked for: evenly from the start of a video."""
    return tuple(seconds * n / count for n in range(count))


def even_times(start: float, end: float, count: int) -> tuple[float, ...]:
    """So many times from start to end, both included; the middle for one alone."""
    if count == 1:
        return ((start + end) / 2,)
    return tuple(start + (end - start) * n / (count - 1) for n in range(count))


def times_text(times: np.ndarray) -> str:
    """Times of frames for a policy, to a hundredth of a second."""
    return f"{', '.join(f'{time:.2f}' for time in times.tolist())} seconds"


def boxed(box: Sequence[float], of: str = "") -> str:
    """What is told of a crop. `of`: of which picture."""
    return f"The box [{', '.join(f'{value:g}' for value in box)}]{of}."


def asked(question: str, counts: Mapping[str, int], limits: Limits) -> str:
    """A question with a sentence for each tool that is offered. `counts`: tool -> media of the row that it can look at."""
    return " ".join([question, *(TOOLS[name].usage(count, limits) for name, count in counts.items())])


def _zoom_usage(count: int, limits: Limits) -> str:
    call = Call(name="zoom", arguments={"box": [250, 250, 750, 750], **({"picture": 1} if count > 1 else {})})
    more = f" Pictures are numbered from 1 to {count}." if count > 1 else ""
    return f"To see a part of the picture larger, write {call.text()} with the box x1, y1, x2, y2 in thousandths of the sides.{more}"


def _frames_usage(count: int, limits: Limits) -> str:
    arguments = {"start": 0.5, "end": 2.5, "count": limits.frames, **({"video": 1} if count > 1 else {})}
    more = f" Videos are numbered from 1 to {count}." if count > 1 else ""
    told = f"with the span in seconds and at most {limits.frames} frames"
    return f"To see more frames of a part of the video, write {Call(name='frames', arguments=arguments).text()} {told}.{more}"


def _read_usage(count: int, limits: Limits) -> str:
    call = Call(name="read_text", arguments={"box": [250, 250, 750, 300], **({"picture": 1} if count > 1 else {})})
    more = f" Pictures are numbered from 1 to {count}." if count > 1 else ""
    return (
        f"To be told the text in a part of the picture, write {call.text()} with the box x1, y1, x2, y2 in thousandths of the sides.{more}"
    )


TOOLS: Mapping[str, Tool] = {
    "zoom": Tool(kind="image", usage=_zoom_usage, arguments=("box", "picture"), run=zoom),
    "frames": Tool(kind="video", usage=_frames_usage, arguments=("start", "end", "count", "video"), run=frames),
    "read_text": Tool(kind="image", usage=_read_usage, arguments=("box", "picture"), run=read_text),
}
"""Every tool by name."""


def look(call: Call, offered: Sequence[str], media: Sequence[Medium], limits: Limits, originals: Originals) -> Looked:
    """What a call shows of the row's media.

    Raises:
        Unusable: no such tool is offered, or the arguments are not those of the tool.
        MediaError: a medium cannot be decoded.
    """
    if call.name not in offered:
        raise Unusable(f"There is no such tool here; there is {' and '.join(offered) or 'none'}.")
    tool = TOOLS[call.name]
    if not set(call.arguments) <= set(tool.arguments):
        raise Unusable(f"The arguments of {call.name} are {', '.join(tool.arguments)}.")
    return tool.run([one for one in media if one.kind == tool.kind], call.arguments, limits, originals)
