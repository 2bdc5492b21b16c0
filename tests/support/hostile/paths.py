"""Names of media that want to hurt: S3 (out of the root, links, special files) and S4 (addresses)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.hostile.case import MediaCase, encode, picture


def paths(root: Path) -> Iterator[MediaCase]:
    """S3. Writes below `root`, and one file beside it."""
    outside = root.parent / "outside.png"
    outside.write_bytes(encode(picture(), "PNG"))
    (root / "folder").mkdir()
    (root / "leads-out.png").symlink_to(outside)
    (root / "loop.png").symlink_to("loop.png")
    (root / "out").symlink_to(root.parent)
    (root / "leads-in.png").symlink_to("rgb.png")
    (root / "zero.png").symlink_to("/dev/zero")
    (root / "dangling.png").symlink_to("nowhere.png")
    os.mkfifo(root / "pipe.png")
    forbidden = frozenset({"forbidden"})
    names = [
        "leads-out.png", "loop.png", "out/outside.png", "zero.png", "pipe.png", "folder", "../outside.png", "folder/../rgb.png",
        str(outside), "/etc/passwd", "/proc/self/environ", "./rgb.png", "folder//rgb.png", "rgb.png\0.jpg", "C:\\rgb.png", "C:/rgb.png",
        "\\\\host\\share\\a.png", "..\\outside.png", "", ".", "..", "a" * 300, "a/" * 2500 + "a", "rgb.png\n", "e\u0301.png",
    ]  # fmt: skip
    for name in names:
        yield MediaCase(group="S3", kind="image", path=name, reasons=forbidden)
    missing = frozenset({"missing"})
    for name in (
        "none.png",
        "..%2foutside.png",
        "%2e%2e/outside.png",
        "RGB.PNG",
        "dangling.png",
        "rgb.png/inside",
        "~/rgb.png",
        "$HOME/a.png",
    ):
        yield MediaCase(group="S3", kind="image", path=name, reasons=missing)
    yield MediaCase(group="S3", kind="image", path="leads-in.png")


def urls(root: Path) -> Iterator[MediaCase]:
    """S4. Writes nothing."""
    urls = [
        "http://127.0.0.1/a.png", "https://example.com/a.png", "ftp://example.com/a.png", "file:///etc/passwd", "s3://bucket/a.png",
        "http://[::1]/a.png", "http://169.254.169.254/latest/meta-data", "http://2130706433/", "https://allowed@evil/", "HTTP://host/a",
        "data:image/png;base64,AAAA", "concat:a.mp4|b.mp4", "pipe:0", "subfile,,start,0,end,9,,:/etc/passwd", "//host/share/a.png",
    ]  # fmt: skip
    for n, url in enumerate(urls):
        reasons = frozenset({"forbidden", "missing"}) if url.startswith("subfile") else frozenset({"forbidden"})
        yield MediaCase(group="S4", kind="image" if n % 2 else "video", path=url, reasons=reasons)
