"""The pictures and videos of a request: data URLs, or files below a folder that the server was told to allow.

Nothing is downloaded. A video may come as frames, `data:video/jpeg;base64,<frame>,<frame>,...` (vLLM's form): with their rate in
`media_io_kwargs.video`. With pixel limits that cut nothing (`mm_processor_kwargs`, as `EndpointEngine` sends them) frames are taken as they
are; otherwise every medium is chosen and resized as in training.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

import numpy as np

from vlmrl import fs
from vlmrl.data.encode import PromptMedium
from vlmrl.errors import MediaError
from vlmrl.evals.ask.engines import WHOLE
from vlmrl.extras.serve.protocol import Part, Refused
from vlmrl.media.access import check_path
from vlmrl.media.image import decode_image
from vlmrl.media.store import MediaStore, ProcessedMedia
from vlmrl.types import MediaKind, MediaRef


class Incoming:
    """Opens the media of one request."""

    def __init__(self, store: MediaStore, scratch: Path, allowed: Sequence[Path], *, pixels: Mapping[str, Any], rate: Mapping[str, Any]):
        """
        Args:
            scratch: an empty folder for what comes in the request itself.
            allowed: folders whose files may be named.
            pixels, rate: `protocol.Chat.pixels` and `.rate`.

        Raises:
            Refused: pixel limits other than those that cut nothing.
        """
        if pixels and dict(pixels) != WHOLE:
            raise Refused(f"mm_processor_kwargs: media are sized as in training; only {WHOLE}, for frames that are sized already, is taken")
        self._store, self._scratch, self._allowed, self._rate = store, scratch, allowed, rate
        self._as_they_are = bool(pixels)
        self._count = 0

    def open(self, part: Part) -> PromptMedium:
        """What the model sees of a picture or a video.

        Raises:
            Refused: the URL is not one that is opened, or the medium cannot be used.
        """
        kind = cast("Literal['image', 'video']", part.kind)
        try:
            entry = self._sent(kind, part.value) if part.value.startswith("data:") else self._named(kind, part.value)
        except MediaError as error:
            raise Refused(f"{kind}: {error}", param="messages", code="invalid_media") from error
        return PromptMedium(entry.handle, entry.frames)

    def _sent(self, kind: MediaKind, url: str) -> ProcessedMedia:
        head, _, body = url.removeprefix("data:").partition(",")
        if not head.endswith(";base64"):
            raise Refused(f"{kind}: a data URL has to be base64", param="messages", code="invalid_media")
        if kind == "image":
            data = _decoded(body)
            return self._store.put(decode_image(data)[None], "image") if self._as_they_are else self._store.get(*self._kept(kind, data))
        frames = body.split(",")
        if len(frames) == 1 and not head.startswith("video/jpeg"):
            return self._store.get(*self._kept(kind, _decoded(body)))
        return self._frames([_decoded(frame) for frame in frames])

    def _frames(self, frames: Sequence[bytes]) -> ProcessedMedia:
        times, spacing = times_of(self._rate, len(frames))
        if self._as_they_are:
            pictures = [decode_image(frame) for frame in frames]
            if len({picture.shape for picture in pictures}) > 1:
                raise MediaError("frames", "the frames of a video have different sizes")
            return self._store.put(np.stack(pictures), "video", times=times, spacing=spacing)
        refs = tuple(self._kept("image", frame)[0] for frame in frames)
        start = float(times[0])
        ref = MediaRef(kind="video", path=refs[0].path, frames=refs, times=tuple(float(t) - start for t in times))
        return self._store.get(ref, self._scratch)

    def _kept(self, kind: MediaKind, data: bytes) -> tuple[MediaRef, Path]:
        name = f"{self._count}.{kind}"
        self._count += 1
        fs.write_bytes(self._scratch / name, data)
        return MediaRef(kind=kind, path=name), self._scratch

    def _named(self, kind: MediaKind, url: str) -> ProcessedMedia:
        """A file that is named by its path, or by a `file:` URL.

        What is outside of the allowed folders gives one answer, whether it is there or not, also behind a link that leads out.
        """
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise Refused(f"{kind}: that is no URL ({error})", param="messages", code="invalid_media") from error
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            raise Refused(f"{kind}: nothing is downloaded; send a data URL", param="messages", code="invalid_media")
        path = Path(unquote(parts.path) if parts.scheme == "file" else url)
        for folder in self._allowed:
            if path.is_absolute() and not path.is_relative_to(folder):
                continue
            name = (path.relative_to(folder) if path.is_absolute() else path).as_posix()
            check_path(name)
            try:
                return self._store.get(MediaRef(kind=kind, path=name), folder)
            except MediaError as error:
                if error.reason not in ("missing", "forbidden"):
                    raise
        why = "is no file in the folders that --allow-media names" if self._allowed else "no folder is allowed (--allow-media FOLDER)"
        raise Refused(f"{kind}: {str(path)[:200]}: {why}", status=403, param="messages", code="forbidden")


def times_of(rate: Mapping[str, Any], count: int) -> tuple[np.ndarray, float | None]:
    """(when each of `count` frames is on screen, float64 seconds; seconds between two), of what `media_io_kwargs` says of videos.

    Either `fps` alone, or `frames_indices` at so many `fps` (then there is no one distance between frames).

    Raises:
        Refused: it says no rate, or that of another number of frames.
    """
    fps, indices = rate.get("fps"), rate.get("frames_indices")
    unknown = set(rate) - {"fps", "frames_indices", "num_frames", "total_num_frames"}
    if unknown or not isinstance(fps, (int, float)) or isinstance(fps, bool) or not 0 < fps < float("inf"):
        raise Refused("media_io_kwargs: a video that is sent as frames needs {'video': {'num_frames': -1, 'fps': its rate}}")
    if indices is None:
        return np.arange(count) / fps, 1 / fps
    if not isinstance(indices, list) or len(indices) != count or not all(type(i) is int and i >= 0 for i in indices):
        raise Refused(f"media_io_kwargs.video.frames_indices: expected {count} frame numbers, one for each frame that was sent")
    times = np.array(indices, dtype=np.float64) / fps
    if (np.diff(times) < 0).any():
        raise Refused("media_io_kwargs.video.frames_indices: frames are not in their order")
    return times, None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"data URL: not base64 ({error})", param="messages", code="invalid_media") from error
