"""Media in documents: where each kept frame is to be had.

A frame is named `media/<item>/<key>/<number>`. Frames with equal pixels have one name, so that a page can fold a film that stands still.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import IO, Any

from vlmrl.extras.pages.kept.media import Medium, opened

INLINE = 16 * 2**20
"""Characters of frames in a page that is one file."""


class Pictures:
    """Names of frames, and what is behind those that were given out.

    Args:
        inline: a frame is given as a `data:` address in place of a name, for a page that is one file. Beyond `INLINE` characters media are
            left out.
    """

    def __init__(self, *, inline: bool = False):
        self.inline = inline
        self._spent = 0
        self.given: dict[str, tuple[str, str, int]] = {}
        """Name -> (item, key, number), of all frames that documents show."""

    def medium(self, item: str, key: str, file: Path | IO[bytes] | None) -> dict[str, Any] | None:
        """What a document says of a medium; None where nothing was kept, or where it is left out."""
        if file is None or self._spent > INLINE:
            return None
        kept = Medium(file)
        return {**kept.info, "frames": [self._given(item, key, number, kept) for number in kept.alike()]}

    def first(self, item: str, key: str, file: Path | None) -> str | None:
        """The name of the first frame, for a small picture."""
        return None if file is None else self._given(item, key, 0, opened(file))

    def _given(self, item: str, key: str, number: int, kept: Medium) -> str:
        if self.inline:
            data, kind = kept.frame(number)
            src = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            self._spent += len(src)
            return src
        src = f"media/{item}/{key}/{number}.{kept.suffix(number)}"
        self.given[src] = item, key, number
        return src
