"""Media of the hostile corpus: images (M1 to M4) and videos (M5 to M9). `paths` has those whose names want to hurt."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from tests.support import media
from tests.support.hostile.case import DAMAGE, MediaCase, encode, picture, write
from tests.support.hostile.paths import paths, urls
from vlmrl.rng import generator


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
        paths,
        urls,
    )
    return [case for make in makers for case in make(root)]


# Images: M1 to M4


def _images(root: Path) -> Iterator[MediaCase]:
    base = picture()
    rgb = Image.fromarray(base)
    modes = {mode: rgb.convert(mode) for mode in ("1", "L", "P", "LA", "RGBA", "CMYK", "I;16")}
    for kind, accepted in (("PNG", ("1", "L", "P", "LA", "RGBA", "I;16")), ("JPEG", ("L", "CMYK")), ("WEBP", ("RGBA",))):
        yield MediaCase(group="M3", kind="image", path=write(root, f"rgb.{kind.lower()}", encode(rgb, kind)))
        for mode in accepted:
            name = f"{kind.lower()}-{mode.replace(';', '')}.img"
            yield MediaCase(group="M3", kind="image", path=write(root, name, encode(modes[mode], kind)))
    frames = [Image.new("RGB", (40, 40), (i, 0, 0)) for i in (10, 120, 240)]
    for kind in ("PNG", "WEBP"):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {}))
        yield MediaCase(group="M3", kind="image", path=write(root, f"animated.{kind.lower()}", data))
    many = [Image.new("1", (8, 8), i % 2) for i in range(300)]
    data = encode(many[0], "WEBP", save_all=True, append_images=many[1:], lossless=True)
    yield MediaCase(group="M2", kind="image", path=write(root, "300-frames.webp", data))
    for quality, options in ((95, {"progressive": True}), (30, {}), (90, {"icc_profile": b"\0" * 3000})):
        data = encode(rgb, "JPEG", quality=quality, **options)
        yield MediaCase(group="M3", kind="image", path=write(root, f"quality-{quality}.jpg", data))


def _orientations(root: Path) -> Iterator[MediaCase]:
    for kind in ("PNG", "JPEG", "WEBP"):
        for value in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = value
            data = encode(picture(), kind, exif=exif)
            yield MediaCase(group="M3", kind="image", path=write(root, f"turn-{value}.{kind.lower()}", data))
    nonsense = Image.Exif()
    nonsense[0x0112] = 77
    yield MediaCase(group="M3", kind="image", path=write(root, "turn-77.jpg", encode(picture(), "JPEG", exif=nonsense)))


def _cut_images(root: Path) -> Iterator[MediaCase]:
    for kind in ("PNG", "JPEG", "WEBP"):
        data = encode(picture(), kind)
        whole = f"rgb.{kind.lower()}"
        for percent in (0, 1, 10, 25, 50, 75, 90, 99):
            name = write(root, f"cut-{percent}.{kind.lower()}", data[: len(data) * percent // 100])
            yield MediaCase(group="M1", kind="image", path=name, reasons=DAMAGE, may_show=whole)
        draw = generator(0, "hostile", len(data))
        for i in range(12):
            flipped = bytearray(data)
            for place in draw.integers(0, len(data), size=1 + i // 4):
                flipped[place] ^= int(draw.integers(1, 256))
            weaker = None if kind == "PNG" else "scan_data"
            path = write(root, f"flip-{i}.{kind.lower()}", bytes(flipped))
            yield MediaCase(group="M1", kind="image", path=path, reasons=DAMAGE, may_show=whole, weaker=weaker)


def _wrong_content(root: Path) -> Iterator[MediaCase]:
    rgb = Image.fromarray(picture())
    html = b"<!DOCTYPE html><html><body>404</body></html>"
    for name in ("page.jpg", "page.png", "page.webp"):
        yield MediaCase(group="M1", kind="image", path=write(root, name, html), reasons=frozenset({"format"}))
    for kind in ("GIF", "BMP", "TIFF", "PPM", "ICO", "TGA", "PCX", "EPS"):
        yield MediaCase(
            group="M2", kind="image", path=write(root, f"is-{kind.lower()}.png", encode(rgb, kind)), reasons=frozenset({"format"})
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
        yield MediaCase(group="M1", kind="image", path=write(root, name, data), reasons=DAMAGE)
    yield MediaCase(group="M1", kind="image", path=write(root, "is-png.jpg", encode(rgb, "PNG")))
    yield MediaCase(group="M1", kind="image", path=write(root, "is-webp.png", encode(rgb, "WEBP")))


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bombs(root: Path) -> Iterator[MediaCase]:
    big = frozenset({"too_large"})
    for side in (7000, 8000, 12000, 20000):
        media.make_bomb_png(root / f"bomb-{side}.png", side, side)
        yield MediaCase(group="M2", kind="image", path=f"bomb-{side}.png", reasons=big)
    plain = encode(picture(), "PNG")
    header = plain[:8] + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)) + plain[33:]
    yield MediaCase(group="M2", kind="image", path=write(root, "bomb-2e31.png", header), reasons=DAMAGE)
    zero = plain[:8] + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 60, 8, 2, 0, 0, 0)) + plain[33:]
    yield MediaCase(group="M2", kind="image", path=write(root, "zero-wide.png", zero), reasons=DAMAGE)
    text = _png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
    yield MediaCase(group="M2", kind="image", path=write(root, "text-bomb.png", plain[:33] + text + plain[33:]), reasons=DAMAGE)
    small = b"".join(_png_chunk(b"tEXt", b"Comment\0" + b"x" * 900_000) for _ in range(10))
    yield MediaCase(
        group="M2", kind="image", path=write(root, "long-texts.png", plain[:33] + small + plain[33:]), reasons=DAMAGE, may_show="rgb.png"
    )
    profile = _png_chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"\0" * 80_000_000, 9))
    yield MediaCase(
        group="M2",
        kind="image",
        path=write(root, "profile-bomb.png", plain[:33] + profile + plain[33:]),
        reasons=DAMAGE,
        may_show="rgb.png",
    )
    canvas = b"VP8X" + struct.pack("<I", 10) + b"\0" * 4 + (16383).to_bytes(3, "little") * 2
    webp = b"RIFF" + struct.pack("<I", 4 + len(canvas)) + b"WEBP" + canvas
    yield MediaCase(group="M2", kind="image", path=write(root, "bomb.webp", webp), reasons=big)
    jpeg = bytearray(encode(picture(), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65000, 65000)
    yield MediaCase(group="M2", kind="image", path=write(root, "bomb.jpg", bytes(jpeg)), reasons=big)
    os.truncate(media.make_empty(root / "huge.png"), 31_000_000)
    yield MediaCase(group="M2", kind="image", path="huge.png", reasons=big)


def _shapes(root: Path) -> Iterator[MediaCase]:
    for height, width in ((1, 1), (1, 200), (200, 1), (2, 3), (28, 28), (1, 28), (27, 29)):
        yield MediaCase(group="M4", kind="image", path=write(root, f"shape-{height}-{width}.png", encode(picture(height, width), "PNG")))
    for height, width in ((1, 201), (201, 1), (1, 10_000), (10_000, 1)):
        name = write(root, f"shape-{height}-{width}.png", encode(picture(height, width), "PNG"))
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
            name = write(root, f"cut-{percent}.{suffix}", data[: len(data) * percent // 100])
            weaker = "head" if suffix == "ts" else "tail" if percent >= 90 else None
            yield MediaCase(group="M8", kind="video", path=name, reasons=DAMAGE, may_show=None if weaker is None else whole, weaker=weaker)
        draw = generator(0, "hostile", len(data))
        for i in range(8):
            flipped = bytearray(data)
            for place in draw.integers(0, len(data), size=1 + i // 2):
                flipped[place] ^= int(draw.integers(1, 256))
            path = write(root, f"flip-{i}.{suffix}", bytes(flipped))
            yield MediaCase(group="M8", kind="video", path=path, reasons=DAMAGE, may_show=whole, weaker="payload")


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
        yield MediaCase(group="M5", kind="video", path=write(root, f"is-{name}.mp4", data), reasons=frozenset({"format"}))
    texts = {
        "playlist.mp4": b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
        "concat.mp4": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        "page.mp4": b"<!DOCTYPE html><html></html>",
        "dash.mkv": b"<?xml version='1.0'?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>",
    }
    for name, data in texts.items():
        yield MediaCase(group="S4", kind="video", path=write(root, name, data), reasons=frozenset({"format"}))
    raw = {
        "zeros.mp4": b"\0" * 4000,
        "ftyp.mp4": plain[:32],
        "magic.mkv": b"\x1a\x45\xdf\xa3",
        "magic.avi": b"RIFF\0\0\0\0AVI ",
        "noise.mp4": plain[:40] + generator(0, "hostile", 2).bytes(4000),
        "noise.ts": b"".join(b"\x47" + generator(0, "hostile", i).bytes(187) for i in range(40)),
    }
    for name, data in raw.items():
        yield MediaCase(group="M8", kind="video", path=write(root, name, data), reasons=DAMAGE)
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
        path = write(root, name, _patched(plain, box, offset, value))
        yield MediaCase(group="M8", kind="video", path=path, reasons=DAMAGE, may_show="24-frames.mp4")
    wide = bytearray(plain)
    at = wide.index(b"avc1") + 4 + 24
    wide[at : at + 4] = struct.pack(">HH", 60_000, 60_000)
    yield MediaCase(group="M9", kind="video", path=write(root, "wide.mp4", bytes(wide)), reasons=DAMAGE, may_show="24-frames.mp4")
    media.make_video(root / "hours.mkv", media.numbered_frames(3), times=[0, 1, 7000])
    yield MediaCase(group="M9", kind="video", path="hours.mkv", reasons=frozenset({"too_large"}))
    media.make_video(root / "tiny-frames.mp4", media.numbered_frames(1500, 16, 16), fps=500)
    yield MediaCase(group="M9", kind="video", path="tiny-frames.mp4")
    os.truncate(media.make_empty(root / "huge.mp4"), 501_000_000)
    yield MediaCase(group="M9", kind="video", path="huge.mp4", reasons=frozenset({"too_large"}))
