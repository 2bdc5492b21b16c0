"""Files that a page is made of: read once, kept in memory, and served under one made-up origin. Nothing else is there."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".htm": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".png": "image/png",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".ttf": "font/ttf",
    ".wasm": "application/wasm",
}
"""Media types by suffix. A table of our own: that of Python depends on the files of the machine."""
_STYLE_URL = re.compile(rb"""url\((['"]?)([^'")]+)\1\)""")


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path with slashes. Hidden ones (`.git`, `.DS_Store`) are no part of a page."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            found[name.as_posix()] = path.read_bytes()
    return found


@dataclass(frozen=True, eq=False)
class Files:
    """What lies under an origin."""

    origin: str
    """Ends in a slash."""
    contents: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """Of all names and contents."""
        every = hashlib.sha256()
        for path, content in self.contents.items():
            every.update(f"{path}\0{len(content)}\0".encode() + content)
        return every.hexdigest()[:16]

    def serve(self, url: str) -> tuple[bytes, str] | None:
        """(content, media type) of a URL; None for what is not there."""
        if not url.startswith(self.origin):
            return None
        path = unquote(url.removeprefix(self.origin).partition("?")[0].partition("#")[0])
        found = self.contents.get(path)
        if found is None:
            return None
        return self.styled(path, found), TYPES.get(Path(path).suffix.lower(), "application/octet-stream")

    def styled(self, path: str, content: bytes) -> bytes:
        """A page or a style sheet with the pictures of its styles in it.

        A style that comes with the pointer (`:hover`) would load its picture then, and until it is there the element has no size: what
        lies under the pointer would depend on how fast the machine is.
        """
        if Path(path).suffix.lower() not in (".html", ".htm", ".css"):
            return content

        def picture(found: re.Match[bytes]) -> bytes:
            named = unquote(found[2].decode("utf-8", "replace").partition("?")[0])
            at = posixpath.normpath(posixpath.join(posixpath.dirname(path), named))
            kind = TYPES.get(Path(at).suffix.lower(), "")
            if at not in self.contents or not kind.startswith("image/"):
                return found[0]
            return b"url(data:%s;base64,%s)" % (kind.encode(), base64.b64encode(self.contents[at]))

        return _STYLE_URL.sub(picture, content)
