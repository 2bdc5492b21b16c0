"""Images: whole, upright, RGB, bounded."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.support.media import make_bomb_png, make_html
from vlmrl.errors import MediaError
from vlmrl.media.headers import image_size
from vlmrl.media.image import decode_image

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (8, 12, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)


def encode(pixels: np.ndarray | Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def reason(data: bytes) -> str:
    with pytest.raises(MediaError) as caught:
        decode_image(data)
    return caught.value.reason


def test_lossless_formats_give_the_exact_pixels() -> None:
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        data = encode(PICTURE, kind, **options)
        pixels = decode_image(data)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, PICTURE)
        assert image_size(data) == (64, 96)


def test_jpeg_is_close() -> None:
    pixels = decode_image(encode(PICTURE, "JPEG", quality=95, subsampling=0))
    assert np.abs(pixels.astype(int) - PICTURE).mean() < 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_eight_orientations_give_equal_pixels(kind: str) -> None:
    """The EXIF value says which transposition was applied by the camera; each is undone, once."""
    stored = {
        1: PICTURE,
        2: PICTURE[:, ::-1],
        3: PICTURE[::-1, ::-1],
        4: PICTURE[::-1],
        5: PICTURE.transpose(1, 0, 2),
        6: np.rot90(PICTURE, 1),
        7: PICTURE[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(PICTURE, -1),
    }
    for value, pixels in stored.items():
        exif = Image.Exif()
        exif[0x0112] = value
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encode(np.ascontiguousarray(pixels), kind, exif=exif, **options)
        upright = decode_image(data)
        assert upright.shape == (64, 96, 3)
        assert image_size(data) == (64, 96)
        assert np.abs(upright.astype(int) - PICTURE).mean() < (12 if kind == "JPEG" else 1e-9), value


def test_png_orientation_after_the_pixels_is_found_by_both() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(np.ascontiguousarray(np.rot90(PICTURE)), "PNG")
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(block)) + b"eXIf" + block + struct.pack(">I", zlib.crc32(b"eXIf" + block))
    data = data[:-12] + chunk + data[-12:]
    assert image_size(data) == (64, 96) == decode_image(data).shape[:2]


def test_transparency_goes_on_white() -> None:
    alpha = np.zeros((4, 4, 4), dtype=np.uint8)
    alpha[..., 0], alpha[:2, :, 3], alpha[2, :, 3] = 200, 255, 51
    pixels = decode_image(encode(alpha, "PNG"))
    assert pixels[0, 0].tolist() == [200, 0, 0]
    # alpha 51 is one fifth: 255 * 4 / 5 + 200 / 5 = 244, 255 * 4 / 5 = 204
    assert pixels[2, 0].tolist() == [244, 204, 204]
    assert pixels[3, 0].tolist() == [255, 255, 255]


def test_palette_and_grey_with_transparency() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    assert decode_image(encode(palette, "PNG")).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert decode_image(encode(palette, "PNG", transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    grey = Image.fromarray(np.array([[7, 9]], dtype=np.uint8))
    assert decode_image(encode(grey, "PNG", transparency=9)).tolist() == [[[7] * 3, [255] * 3]]


def test_sixteen_bit_grey_keeps_its_range() -> None:
    values = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    assert decode_image(encode(values, "PNG")).tolist() == [[[0] * 3, [1] * 3, [128] * 3, [255] * 3]]


def test_one_bit_and_cmyk() -> None:
    assert decode_image(encode(Image.new("1", (1, 1), 1), "PNG")).tolist() == [[[255, 255, 255]]]
    cmyk = decode_image(encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"))
    assert np.abs(cmyk.astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_animations_give_their_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), (i * 80, 0, 0)) for i in range(3)]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {}))
    assert decode_image(data).max() == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 0.99])
def test_cut_files_are_errors_and_never_half_pictures(kind: str, share: float) -> None:
    data = encode(PICTURE, kind)
    whole = decode_image(data)
    cut = data[: int(len(data) * share)]
    try:
        pixels = decode_image(cut)
    except MediaError as error:
        reason = error.reason
    else:  # only what carries no pixels was lost
        assert share == 0.99
        np.testing.assert_array_equal(pixels, whole)
        return
    assert reason in ("corrupt", "truncated", "format")


def test_a_cut_jpeg_is_called_truncated() -> None:
    data = encode(PICTURE, "JPEG")
    assert reason(data[: len(data) // 2]) == "truncated"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "WEBP"]), st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=8))
def test_flipped_bytes_give_pixels_or_a_media_error(kind: str, flips: list[tuple[float, int]]) -> None:
    data = bytearray(encode(PICTURE, kind))
    for place, value in flips:
        data[int(place * len(data))] ^= value
    try:
        pixels = decode_image(bytes(data))
    except MediaError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3


def test_other_formats_are_refused_whatever_their_name(tmp_path: Path) -> None:
    assert reason(make_html(tmp_path / "a.jpg").read_bytes()) == "format"
    assert reason(encode(PICTURE, "GIF")) == "format"
    assert reason(encode(PICTURE, "BMP")) == "format"
    assert reason(b"") == "corrupt"


@pytest.mark.parametrize("side", [8000, 12000, 20000])
def test_bombs_are_refused_by_their_header(tmp_path: Path, side: int) -> None:
    data = make_bomb_png(tmp_path / "bomb.png", side, side).read_bytes()
    assert len(data) < 100_000
    assert reason(data) == "too_large"
    with pytest.raises(MediaError, match="too_large"):
        image_size(data)


def test_webp_canvas_is_checked_before_pillow_allocates_it() -> None:
    frames = [Image.new("RGB", (8, 8), (i * 200, 0, 0)) for i in range(2)]
    data = bytearray(encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]))
    assert data[12:16] == b"VP8X"
    data[24:27] = data[27:30] = (16382).to_bytes(3, "little")
    assert reason(bytes(data)) == "too_large"


def test_text_bombs_in_png_are_errors() -> None:
    block = b"key\0\0" + zlib.compress(b"a" * 80_000_000, 1)
    chunk = struct.pack(">I", len(block)) + b"zTXt" + block + struct.pack(">I", zlib.crc32(b"zTXt" + block))
    data = encode(PICTURE, "PNG")
    assert reason(data[:33] + chunk + data[33:]) == "corrupt"


def test_refuses_to_work_while_half_pictures_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RuntimeError, match="LOAD_TRUNCATED_IMAGES"):
        decode_image(encode(PICTURE, "JPEG"))
