"""Media in documents: where each kept frame is to be had, and its bytes.

A frame is named `media/<item>/<medium>/<number>`: of a kept group (JPEG in the ZIP file of its key), or of a held-out question (PNG, cut
from the strip that was kept of it). Frames with equal pixels have one name, so that a page can fold a film that stands still.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.runfiles import Frames

INLINE = 16 * 2**20
"""Characters of frames in a page that is one file."""
STRIP = "f-"
"""With this the name of a medium begins that is a strip."""


class Pictures:
    """Names of frames, and what is behind those that were given out.

    Args:
        inline: a frame is given as a `data:` address in place of a name, for a page that is one file. Beyond `INLINE` bytes of frames
            media are left out, and those of kept groups have no small pictures.
    """

    def __init__(self, *, inline: bool = False):
        self.inline = inline
        self._spent = 0
        self.given: dict[str, tuple[str, str, int]] = {}
        """Name -> (item, medium, number), of all frames that documents show."""

    def medium(self, item: str, name: str, kept: Path | Frames | None) -> dict[str, Any] | None:
        """What a document says of a medium; None where nothing was kept, or where it is left out.

        Args:
            kept: the file of a kept group's medium, or the strip of a held-out question.
        """
        if kept is None or self._spent > INLINE:
            return None
        if isinstance(kept, Frames):
            size, shown, first = kept.size, kept.shown, first_alike(_cut(kept.strip, kept.count))
            said: dict[str, Any] = {
                "kind": "image" if kept.times is None and kept.total == 1 else "video",
                "times": kept.times,
                "indices": shown.indices,
                "total": kept.total,
                "size": list(size),
                "original": None,
                "duration": kept.duration,
            }
        else:
            said = media.info(kept)
            first = first_alike(_sums(kept))
        data = [self._given(item, name, number, kept) for number in first]
        return {**said, "frames": data}

    def first(self, item: str, name: str, kept: Path | Frames | None) -> str | None:
        """The name of the first frame, for a small picture."""
        return None if kept is None or (self.inline and not isinstance(kept, Frames)) else self._given(item, name, 0, kept)

    def _given(self, item: str, name: str, number: int, kept: Path | Frames) -> str:
        kind = "png" if isinstance(kept, Frames) else "jpeg"
        if self.inline:
            data = base64.b64encode(frame_of(kept, number)).decode()
            self._spent += len(data)
            return f"data:image/{kind};base64,{data}"
        src = f"media/{item}/{name}/{number}.{kind}"
        self.given[src] = item, name, number
        return src


def frame_of(kept: Path | Frames, number: int) -> bytes:
    """A kept frame as the bytes of a picture file.

    Raises:
        StorageError: it is not there.
    """
    if not isinstance(kept, Frames):
        return media.frame(kept, number)
    if number >= kept.count:
        raise StorageError(f"{kept.sample_id}: frame {number} was not kept")
    return _cut(kept.strip, kept.count)[number]


def first_alike(frames: Sequence[Any]) -> list[int]:
    """Of each frame the number of the first that is equal to it."""
    first: dict[Any, int] = {}
    return [first.setdefault(frame, number) for number, frame in enumerate(frames)]


@lru_cache(256)
def _cut(strip: str, count: int) -> tuple[bytes, ...]:
    """A strip as `count` PNG files."""
    from PIL import Image

    out: list[bytes] = []
    with Image.open(io.BytesIO(base64.b64decode(strip))) as whole:
        wide = whole.width // count
        for number in range(count):
            file = io.BytesIO()
            whole.crop((number * wide, 0, (number + 1) * wide, whole.height)).save(file, format="PNG")
            out.append(file.getvalue())
    return tuple(out)


def _sums(path: Path) -> list[tuple[int, int]]:
    """Of each frame in a medium's file its checksum and size, in order."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [
                (one.CRC, one.file_size) for one in sorted(archive.infolist(), key=lambda one: one.filename) if one.filename[:4].isdigit()
            ]
    except (OSError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path}: {error}") from error
