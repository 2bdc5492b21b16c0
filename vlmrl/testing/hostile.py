"""A corpus of media files and rows that want to hurt, made at test time, each with what has to come of it.

Media: `media_cases` writes files below a folder; for each, the reasons that are right (None: it is honest and must be shown as it is).
Rows: `row_cases` gives lines of a JSONL file. Letters name the fault catalogue: D rows, M media, S security.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl.rng import generator
from vlmrl.testing import media
from vlmrl.types import MediaKind

DAMAGE = frozenset({"corrupt", "truncated", "format", "no_frames", "too_large"})
"""What damaged bytes may be called."""


@dataclass(frozen=True, kw_only=True)
class MediaCase:
    """One medium of the corpus."""

    group: str
    """Fault of the catalogue: M1, S3, ..."""
    kind: MediaKind
    path: str
    """As a row would give it."""
    reasons: frozenset[str] = frozenset()
    """Right reasons for leaving it out; empty: it has to be shown."""
    may_show: str | None = None
    """Path of an undamaged file of the same pictures: the case may also be shown, but only if it looks like that one."""


@dataclass(frozen=True, kw_only=True)
class RowCase:
    """One line of the corpus."""

    group: str
    line: bytes
    reason: str | None
    """None: a good row."""


def encode(pixels: np.ndarray | Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as a file of this Pillow format."""
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(height: int = 60, width: int = 84) -> np.ndarray:
    """A smooth picture, uint8 [height, width, 3], whose four corners differ."""
    y, x = np.mgrid[0:height, 0:width]
    channels = (255 * y / max(1, height - 1), 255 * x / max(1, width - 1), 255 * (x + y) / max(1, height + width - 2))
    return np.stack(channels, axis=-1).astype(np.uint8)


def media_cases(root: Path) -> list[MediaCase]:
    """Write the files and list them: every case of M1 to M9, S3 and S4. Nothing outside `root` and its parent is written."""
    makers: tuple[Callable[[Path], Iterator[MediaCase]], ...] = (
        _images,
        _orientations,
        _cut_images,
        _wrong_content,
        _bombs,
        _shapes,
        _videos,
        _cut_videos,
        _broken_videos,
        _paths,
        _urls,
    )
    return [case for make in makers for case in make(root)]


# Images: M1 to M4


def _write(root: Path, name: str, data: bytes) -> str:
    (root / name).write_bytes(data)
    return name


def _images(root: Path) -> Iterator[MediaCase]:
    base = picture()
    rgb = Image.fromarray(base)
    modes = {mode: rgb.convert(mode) for mode in ("1", "L", "P", "LA", "RGBA", "CMYK", "I;16")}
    for kind, accepted in (("PNG", ("1", "L", "P", "LA", "RGBA", "I;16")), ("JPEG", ("L", "CMYK")), ("WEBP", ("RGBA",))):
        yield MediaCase(group="M3", kind="image", path=_write(root, f"rgb.{kind.lower()}", encode(rgb, kind)))
        for mode in accepted:
            name = f"{kind.lower()}-{mode.replace(';', '')}.img"
            yield MediaCase(group="M3", kind="image", path=_write(root, name, encode(modes[mode], kind)))
    frames = [Image.new("RGB", (40, 40), (i, 0, 0)) for i in (10, 120, 240)]
    for kind in ("PNG", "WEBP"):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {}))
        yield MediaCase(group="M3", kind="image", path=_write(root, f"animated.{kind.lower()}", data))
    many = [Image.new("1", (8, 8), i % 2) for i in range(300)]
    data = encode(many[0], "WEBP", save_all=True, append_images=many[1:], lossless=True)
    yield MediaCase(group="M2", kind="image", path=_write(root, "300-frames.webp", data))
    for quality, options in ((95, {"progressive": True}), (30, {}), (90, {"icc_profile": b"\0" * 3000})):
        data = encode(rgb, "JPEG", quality=quality, **options)
        yield MediaCase(group="M3", kind="image", path=_write(root, f"quality-{quality}.jpg", data))


def _orientations(root: Path) -> Iterator[MediaCase]:
    for kind in ("PNG", "JPEG", "WEBP"):
        for value in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = value
            data = encode(picture(), kind, exif=exif)
            yield MediaCase(group="M3", kind="image", path=_write(root, f"turn-{value}.{kind.lower()}", data))
    nonsense = Image.Exif()
    nonsense[0x0112] = 77
    yield MediaCase(group="M3", kind="image", path=_write(root, "turn-77.jpg", encode(picture(), "JPEG", exif=nonsense)))


def _cut_images(root: Path) -> Iterator[MediaCase]:
    for kind in ("PNG", "JPEG", "WEBP"):
        data = encode(picture(), kind)
        whole = f"rgb.{kind.lower()}"
        for percent in (0, 1, 10, 25, 50, 75, 90, 99):
            name = _write(root, f"cut-{percent}.{kind.lower()}", data[: len(data) * percent // 100])
            yield MediaCase(group="M1", kind="image", path=name, reasons=DAMAGE, may_show=whole)
        draw = generator(0, "hostile", len(data))
        for i in range(12):
            flipped = bytearray(data)
            for place in draw.integers(0, len(data), size=1 + i // 4):
                flipped[place] ^= int(draw.integers(1, 256))
            # a flipped byte of pixel data may decode to other pixels: only a format with checksums can tell
            same = whole if kind == "PNG" else ""
            yield MediaCase(
                group="M1", kind="image", path=_write(root, f"flip-{i}.{kind.lower()}", bytes(flipped)), reasons=DAMAGE, may_show=same
            )


def _wrong_content(root: Path) -> Iterator[MediaCase]:
    rgb = Image.fromarray(picture())
    html = b"<!DOCTYPE html><html><body>404</body></html>"
    for name in ("page.jpg", "page.png", "page.webp"):
        yield MediaCase(group="M1", kind="image", path=_write(root, name, html), reasons=frozenset({"format"}))
    for kind in ("GIF", "BMP", "TIFF", "PPM", "ICO", "TGA", "PCX", "EPS"):
        yield MediaCase(
            group="M2", kind="image", path=_write(root, f"is-{kind.lower()}.png", encode(rgb, kind)), reasons=frozenset({"format"})
        )
    others = {
        "svg.png": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "fits.png": b"SIMPLE  =                    T" + b" " * 3000,
        "pdf.png": b"%PDF-1.4\n" + b"0" * 200,
        "zip.png": b"PK\x03\x04" + b"\0" * 200,
        "pickle.png": b"\x80\x04\x95" + b"\0" * 200,
        "zeros.png": b"\0" * 5000,
        "magic.png": b"\x89PNG\r\n\x1a\n",
        "magic.jpg": b"\xff\xd8\xff",
        "magic.webp": b"RIFF\xff\xff\xff\xffWEBPVP8X",
        "noise.jpg": generator(0, "hostile", 1).bytes(4000),
    }
    for name, data in others.items():
        yield MediaCase(group="M1", kind="image", path=_write(root, name, data), reasons=DAMAGE)
    yield MediaCase(group="M1", kind="image", path=_write(root, "is-png.jpg", encode(rgb, "PNG")))
    yield MediaCase(group="M1", kind="image", path=_write(root, "is-webp.png", encode(rgb, "WEBP")))


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bombs(root: Path) -> Iterator[MediaCase]:
    big = frozenset({"too_large"})
    for side in (7000, 8000, 12000, 20000):
        media.make_bomb_png(root / f"bomb-{side}.png", side, side)
        yield MediaCase(group="M2", kind="image", path=f"bomb-{side}.png", reasons=big)
    plain = encode(picture(), "PNG")
    header = plain[:8] + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)) + plain[33:]
    yield MediaCase(group="M2", kind="image", path=_write(root, "bomb-2e31.png", header), reasons=DAMAGE)
    zero = plain[:8] + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 60, 8, 2, 0, 0, 0)) + plain[33:]
    yield MediaCase(group="M2", kind="image", path=_write(root, "zero-wide.png", zero), reasons=DAMAGE)
    text = _png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
    yield MediaCase(group="M2", kind="image", path=_write(root, "text-bomb.png", plain[:33] + text + plain[33:]), reasons=DAMAGE)
    small = b"".join(_png_chunk(b"tEXt", b"Comment\0" + b"x" * 900_000) for _ in range(10))
    yield MediaCase(
        group="M2", kind="image", path=_write(root, "long-texts.png", plain[:33] + small + plain[33:]), reasons=DAMAGE, may_show="rgb.png"
    )
    profile = _png_chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
    yield MediaCase(
        group="M2",
        kind="image",
        path=_write(root, "profile-bomb.png", plain[:33] + profile + plain[33:]),
        reasons=DAMAGE,
        may_show="rgb.png",
    )
    canvas = b"VP8X" + struct.pack("<I", 10) + b"\0" * 4 + (16383).to_bytes(3, "little") * 2
    webp = b"RIFF" + struct.pack("<I", 4 + len(canvas)) + b"WEBP" + canvas
    yield MediaCase(group="M2", kind="image", path=_write(root, "bomb.webp", webp), reasons=big)
    jpeg = bytearray(encode(picture(), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65000, 65000)
    yield MediaCase(group="M2", kind="image", path=_write(root, "bomb.jpg", bytes(jpeg)), reasons=big)
    os.truncate(media.make_empty(root / "huge.png"), 31_000_000)
    yield MediaCase(group="M2", kind="image", path="huge.png", reasons=big)


def _shapes(root: Path) -> Iterator[MediaCase]:
    for height, width in ((1, 1), (1, 200), (200, 1), (2, 3), (28, 28), (1, 28), (27, 29)):
        yield MediaCase(group="M4", kind="image", path=_write(root, f"shape-{height}-{width}.png", encode(picture(height, width), "PNG")))
    for height, width in ((1, 201), (201, 1), (1, 10_000), (10_000, 1)):
        name = _write(root, f"shape-{height}-{width}.png", encode(picture(height, width), "PNG"))
        yield MediaCase(group="M4", kind="image", path=name, reasons=frozenset({"aspect"}))


# Videos: M5 to M9


def _videos(root: Path) -> Iterator[MediaCase]:
    frames = media.numbered_frames
    for suffix in ("mp4", "mov", "mkv", "ts", "avi"):
        for count in (1, 2, 24):
            name = f"{count}-frames.{suffix}"
            media.make_video(root / name, frames(count), fps=10, bframes=2 if count == 24 else 0)
            yield MediaCase(group="M5", kind="video", path=name)
    for rate in (1.0, 24000 / 1001, 240.0):
        name = f"rate-{rate:.0f}.mp4"
        media.make_video(root / name, frames(30), fps=rate)
        yield MediaCase(group="M6", kind="video", path=name)
    irregular = [0, 0.1, 0.2, 0.3, 3, 3.1, 9, 9.1]
    for suffix in ("mp4", "mkv", "ts"):
        media.make_video(root / f"variable.{suffix}", frames(8), times=irregular, last=0.9)
        yield MediaCase(group="M6", kind="video", path=f"variable.{suffix}")
        media.make_video(root / f"late.{suffix}", frames(12), times=[0.7 + i / 10 for i in range(12)])
        yield MediaCase(group="M6", kind="video", path=f"late.{suffix}")
    media.make_video(root / "negative.mp4", frames(20), times=[-0.3 + i / 10 for i in range(20)])
    yield MediaCase(group="M6", kind="video", path="negative.mp4")
    for degrees in (0, 90, 180, 270):
        media.make_video(root / f"turned-{degrees}.mp4", frames(8), fps=10, rotation=degrees)
        yield MediaCase(group="M7", kind="video", path=f"turned-{degrees}.mp4")
    for suffix in ("mp4", "mkv"):
        media.make_video(root / f"sound.{suffix}", frames(12), fps=10, tone=3.0)
        yield MediaCase(group="M8", kind="video", path=f"sound.{suffix}")


def _cut_videos(root: Path) -> Iterator[MediaCase]:
    for suffix in ("mp4", "mkv", "ts", "avi"):
        whole = f"24-frames.{suffix}"
        data = (root / whole).read_bytes()
        for percent in (0, 10, 20, 30, 50, 70, 80, 90, 99):
            name = _write(root, f"cut-{percent}.{suffix}", data[: len(data) * percent // 100])
            # a transport stream does not say how long it is meant to be: its first part is a whole video
            shows = "" if suffix == "ts" or percent >= 90 else None
            yield MediaCase(group="M8", kind="video", path=name, reasons=DAMAGE, may_show=shows)
        draw = generator(0, "hostile", len(data))
        for i in range(8):
            flipped = bytearray(data)
            for place in draw.integers(0, len(data), size=1 + i // 2):
                flipped[place] ^= int(draw.integers(1, 256))
            yield MediaCase(group="M8", kind="video", path=_write(root, f"flip-{i}.{suffix}", bytes(flipped)), reasons=DAMAGE, may_show="")


def _patched(data: bytes, box: bytes, offset: int, value: int) -> bytes:
    """An ISO file with one 32-bit number of its first `box` replaced; `offset` counts from the box's content."""
    out = bytearray(data)
    at = out.index(box) + 4 + offset
    out[at : at + 4] = struct.pack(">I", value)
    return bytes(out)


def _broken_videos(root: Path) -> Iterator[MediaCase]:
    plain = (root / "24-frames.mp4").read_bytes()
    none = frozenset({"no_frames"})
    media.make_audio(root / "sound-only.mp4")
    yield MediaCase(group="M5", kind="video", path="sound-only.mp4", reasons=none)
    media.make_audio(root / "sound-only.mkv")
    yield MediaCase(group="M5", kind="video", path="sound-only.mkv", reasons=none)
    pictures = {"png": encode(picture(), "PNG"), "jpg": encode(picture(), "JPEG"), "gif": encode(picture(), "GIF")}
    for name, data in pictures.items():
        yield MediaCase(group="M5", kind="video", path=_write(root, f"is-{name}.mp4", data), reasons=frozenset({"format"}))
    texts = {
        "playlist.mp4": b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
        "concat.mp4": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        "page.mp4": b"<!DOCTYPE html><html></html>",
        "dash.mkv": b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>",
    }
    for name, data in texts.items():
        yield MediaCase(group="S4", kind="video", path=_write(root, name, data), reasons=frozenset({"format"}))
    raw = {
        "zeros.mp4": b"\0" * 4000,
        "ftyp.mp4": plain[:32],
        "magic.mkv": b"\x1a\x45\xdf\xa3",
        "magic.avi": b"RIFF\0\0\0\0AVI ",
        "noise.mp4": plain[:40] + generator(0, "hostile", 2).bytes(4000),
        "noise.ts": b"".join(b"\x47" + generator(0, "hostile", i).bytes(187) for i in range(40)),
    }
    for name, data in raw.items():
        yield MediaCase(group="M8", kind="video", path=_write(root, name, data), reasons=DAMAGE)
    lies = {
        "long.mp4": (b"mdhd", 16, 12_000 * 7200),
        "longer.mp4": (b"mdhd", 16, 12_000 * 30),
        "no-clock.mp4": (b"mdhd", 12, 0),
        "many.mp4": (b"stts", 8, 2**31 - 1),
        "sizes.mp4": (b"stsz", 8, 2**31 - 1),
        "chunks.mp4": (b"stco", 4, 2**31 - 1),
        "far.mp4": (b"stco", 8, 2**31 - 1),
        "boxes.mp4": (b"trak", 0, 2**32 - 1),
        "slow.mp4": (b"stts", 12, 12_000 * 600),
    }
    for name, (box, offset, value) in lies.items():
        path = _write(root, name, _patched(plain, box, offset, value))
        yield MediaCase(group="M8", kind="video", path=path, reasons=DAMAGE | {"truncated"}, may_show="")
    wide = bytearray(plain)
    at = wide.index(b"avc1") + 4 + 24
    wide[at : at + 4] = struct.pack(">HH", 60_000, 60_000)
    yield MediaCase(group="M9", kind="video", path=_write(root, "wide.mp4", bytes(wide)), reasons=DAMAGE, may_show="24-frames.mp4")
    media.make_video(root / "hours.mkv", media.numbered_frames(3), times=[0, 1, 7000])
    yield MediaCase(group="M9", kind="video", path="hours.mkv", reasons=frozenset({"too_large"}))
    media.make_video(root / "tiny-frames.mp4", media.numbered_frames(1500, 16, 16), fps=500)
    yield MediaCase(group="M9", kind="video", path="tiny-frames.mp4")
    os.truncate(media.make_empty(root / "huge.mp4"), 501_000_000)
    yield MediaCase(group="M9", kind="video", path="huge.mp4", reasons=frozenset({"too_large"}))


# Paths: S3, S4


def _paths(root: Path) -> Iterator[MediaCase]:
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


def _urls(root: Path) -> Iterator[MediaCase]:
    urls = [
        "http://127.0.0.1/a.png", "https://example.com/a.png", "ftp://example.com/a.png", "file:///etc/passwd", "s3://bucket/a.png",
        "http://[::1]/a.png", "http://169.254.169.254/latest/meta-data", "http://2130706433/", "https://allowed@evil/", "HTTP://host/a",
        "data:image/png;base64,AAAA", "concat:a.mp4|b.mp4", "pipe:0", "subfile,,start,0,end,9,,:/etc/passwd", "//host/share/a.png",
    ]  # fmt: skip
    for n, url in enumerate(urls):
        reasons = frozenset({"forbidden", "missing"}) if url.startswith("subfile") else frozenset({"forbidden"})
        yield MediaCase(group="S4", kind="image" if n % 2 else "video", path=url, reasons=reasons)


# Rows: D


def good_row(name: str, **changes: Any) -> dict[str, Any]:
    """A row that the reader accepts; `changes` replace keys, or remove those that are given as Ellipsis."""
    row = {"id": name, "task": "vqa", "answer_type": "open", "image": "rgb.png", "prompt": "What is it?", "answer": "a picture"}
    return {key: value for key, value in (row | changes).items() if value is not ...}


def row_cases() -> list[RowCase]:
    """Lines of a JSONL file, the last of which is cut off. Good ones are among them, so that nothing may spill over."""
    out = [RowCase(group=group, line=line, reason=reason) for group, line, reason in _lines()]
    out += [RowCase(group="D1", line=json.dumps(good_row(f"good-{n}")).encode() + b"\n", reason=None) for n in range(8)]
    out += [
        RowCase(group=g, line=json.dumps(good_row(f"row-{n}", **c)).encode() + b"\n", reason=r) for n, (g, c, r) in enumerate(_changes())
    ]
    repeats = [good_row("twice"), good_row("twice"), good_row("twice", answer="another")]
    out += [
        RowCase(group="D2", line=json.dumps(row).encode() + b"\n", reason="duplicate_id" if n else None) for n, row in enumerate(repeats)
    ]
    return [*out, RowCase(group="D1", line=json.dumps(good_row("half")).encode()[:40], reason="half_line")]


def _lines() -> Iterator[tuple[str, bytes, str]]:
    """(fault, line, reason) of lines that are no JSON object of the right form."""
    row = json.dumps(good_row("x"))
    texts: list[tuple[str, str]] = [
        ("{", "json"), ("nonsense", "json"), ("{'id': 1}", "json"), (row[:-1], "json"), (row + ",", "json"), (row + row, "json"),
        ('{"a": 01}', "json"), ('{"a": .5}', "json"), ('{"a": "\t"}', "json"), ("// note", "json"), ("\0" * 50, "json"),
        ("[]", "not_object"), ("null", "not_object"), ("3", "not_object"), ('"text"', "not_object"), ("true", "not_object"),
        (row[:-1] + ', "id": "y"}', "duplicate_key"), (row[:-1] + ', "meta": {"a": 1, "a": 2}}', "duplicate_key"),
        (row[:-1] + ', "meta": {"a": NaN}}', "not_finite"), (row[:-1] + ', "meta": {"a": -Infinity}}', "not_finite"),
        (row[:-1] + ', "meta": {"a": 1e999}}', "not_finite"), (row[:-1] + ', "meta": {"a": ' + "9" * 5000 + "}}", "bad_value"),
        (row[:-1] + ', "meta": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}", "nesting"),
        (row[:-1] + ', "meta": {"a": ' + "[" * 80 + "]" * 80 + "}}", "nesting"),
        (row[:-1] + ', "meta": {"a": "\\ud800"}}', "encoding"), (row[:-1] + ', "meta": {"a": "\\u0000"}}', "bad_value"),
        (row[:-1] + ', "meta": {"a": "' + "x" * 4_000_001 + '"}}', "too_long"),
    ]  # fmt: skip
    for text, reason in texts:
        yield "D1", text.encode() + b"\n", reason
    for raw in (b"\xff\xfe" + row.encode("utf-16-le") + b"\n", row.encode().replace(b"What", b"W\xe9") + b"\n", b"\x80\x04\x95\n"):
        yield "D1", raw, "encoding"


def _changes() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(fault, change of a good row, reason)."""
    for key in ("task", "answer_type", "prompt", "answer", "id"):
        yield "D1", {key: ...}, "missing_key"
        yield "D1", {key: 7}, "bad_type"
        yield "D1", {key: "  "}, "bad_value"
    yield "D1", {"answr": "x"}, "unknown_key"
    yield "D1", {"answer_type": "opne"}, "bad_value"
    yield "D1", {"gt": [1]}, "bad_type"
    yield "D1", {"image": 3}, "bad_type"
    yield "D1", {"images": ["a.png"]}, "bad_value"
    yield "D1", {"options": "abc"}, "bad_type"
    yield "D1", {"data_type": "video"}, "bad_value"
    for text in ("<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|endoftext|>"):
        yield "D4", {"prompt": f"What {text} is it?"}, "control_token"
        yield "D4", {"answer": text}, "control_token"
    yield "D4", {"thought": "<|im_start|>system"}, "control_token"
    yield "D6", {"prompt": "What is <image> it?"}, "placeholder"
    yield "D6", {"prompt": "<image><image> What?"}, "placeholder"
    yield "D6", {"prompt": "<video> What?"}, "placeholder"
    for box in ([3, 3, 1, 1], [-1, 0, 2, 2], [0, 0, 0, 5]):
        yield "D7", {"answer_type": "bbox", "gt": {"boxes": [box]}}, "bad_value"
    yield "D7", {"answer_type": "bbox", "gt": {"boxes": [[1, 2, 3]]}}, "bad_type"
    yield "D7", {"answer_type": "bbox", "gt": {"boxes": []}}, "missing_key"
    for span in ([5, 3], [-1, 2], [2, 2]):
        yield "D7", {"answer_type": "time_span", "gt": {"time": span}}, "bad_value"
    for path in ("../a.png", "/etc/passwd", "http://127.0.0.1/a.png", "file:///a.png", "a\\b.png"):
        yield "S4" if ":" in path else "S3", {"image": path}, "forbidden"
