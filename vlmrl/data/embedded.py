"""Takes pictures and videos out of the text of a row: `data:image/...;base64,...`, or bare base64 of a file that is known by its start."""

from __future__ import annotations

import base64
import binascii
import re

from vlmrl.errors import RowError
from vlmrl.media.access import VIDEO_BYTES

_URI = re.compile(r"\s*data:(?:image|video|application/octet-stream)\b[^,]{0,200},", re.IGNORECASE)
_BARE = re.compile(r"(?:/9j/|iVBORw0KGgo|UklGR|GkXfo|AAAA.GZ0eX)[A-Za-z0-9+/\s]+={0,2}\s*")
"""Base64 that begins as that of JPEG, PNG, WebP or AVI, Matroska, or MP4 does."""
_SHORTEST = 64
"""Characters: no picture is smaller, and no path of that length has none but letters and digits."""


def is_embedded(text: str) -> bool:
    """Check whether a text is the content of a file instead of a path."""
    # the head of a data URI is short; the content behind it may be hundreds of megabytes
    head = text[:300]
    return _URI.match(head) is not None or (len(text) >= _SHORTEST and _BARE.fullmatch(text) is not None)


def content_of(text: str, place: str) -> bytes:
    """Decode a text for which `is_embedded` holds to the bytes of its file; `place` names it in messages.

    Raises:
        RowError: `base64` (it is no valid base64), or `too_large`.
    """
    uri = _URI.match(text[:300])
    if uri is not None and not uri.group().rstrip(",").lower().rstrip().endswith(";base64"):
        raise RowError("base64", f"'{place}' is a data URI without ';base64'; other codings are not read")
    coded = text[uri.end() :] if uri is not None else text
    # base64 writes 3 bytes as 4 characters: the size is known, and refused, before anything is decoded
    if len(coded) > VIDEO_BYTES // 3 * 4:
        raise RowError("too_large", f"'{place}': {len(coded)} characters of base64; the limit is {VIDEO_BYTES} bytes")
    try:
        # line breaks are usual in base64 (MIME); any other foreign character makes it invalid instead of being skipped
        data = base64.b64decode("".join(coded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RowError("base64", f"'{place}' is not valid base64: {error}") from error
    if not data:
        raise RowError("base64", f"'{place}' is a data URI without content")
    return data
