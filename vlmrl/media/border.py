"""The media fault border: whatever a decoding library throws at a file becomes a `MediaError` with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vlmrl.errors import MediaError


@contextmanager
def border(what: str) -> Iterator[None]:
    """Put calls into a decoding library, and nothing else, inside this block.

    Raises:
        MediaError: `corrupt`, or `truncated` where the library says so. Lack of memory is not a fault of the file and rises.
    """
    try:
        yield
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever their parsers meet (OSError, SyntaxError, struct.error, ...)
        text = str(error).strip().split("\n")[0][:300]
        reason = "truncated" if "truncated" in text.lower() else "corrupt"
        raise MediaError(reason, f"{what}: {type(error).__name__}: {text}") from error
