"""A JPEG that lacks a part of its picture is refused, and no healthy one is."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vlmrl.errors import MediaError
from vlmrl.media.image import decode_image
from vlmrl.media.jpeg import _check_padded, _structure, check_whole

END = b"\xff\xd9"
SIZES = [(1, 1), (7, 3), (8, 8), (9, 17), (16, 16), (33, 200), (96, 144), (150, 90), (500, 700), (1, 700), (64, 1100)]


def pixels(content: str, height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    if content == "noise":
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if content == "smooth":
        return np.stack([x * 2, y * 2, x + y], -1).astype(np.uint8)
    if content == "dots":
        return ((rng.random((height, width, 1)) > 0.98) * 255).astype(np.uint8).repeat(3, 2)
    return np.full((height, width, 3), 128, np.uint8)


def jpeg(content: str = "noise", size: tuple[int, int] = (96, 144), mode: str = "RGB", kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(content, *size)).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def reason(data: bytes) -> str:
    with pytest.raises(MediaError) as caught:
        decode_image(data)
    return caught.value.reason


def cut(data: bytes, share: float) -> bytes:
    """The file up to this share of its coded data, with the end marker put back, as download tools and cameras do."""
    scans = _structure(data).scans
    end = scans[0].start + int((scans[-1].end - scans[0].start) * share)
    return data[:end].removesuffix(b"\xff") + END


OPTIONS = st.fixed_dictionaries(
    {
        "quality": st.sampled_from([1, 10, 50, 75, 95, 100]),
        "progressive": st.booleans(),
        "optimize": st.booleans(),
        "subsampling": st.sampled_from([0, 1, 2]),
    },
    optional={
        "restart_marker_blocks": st.sampled_from([1, 2, 5, 9]),
        "restart_marker_rows": st.sampled_from([1, 3]),
        "exif": st.sampled_from([b"", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0\0\0\0\0"]),
        "comment": st.just(b"\xff\xd9 an end marker, and \xff\xda a scan, in a comment"),
        "icc_profile": st.just(b"\xff\xd8\xff" * 30_000),
    },
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["noise", "smooth", "dots", "flat"]), st.sampled_from(SIZES), st.sampled_from(["RGB", "L", "CMYK"]), OPTIONS)
def test_no_healthy_jpeg_is_refused(content: str, size: tuple[int, int], mode: str, options: dict[str, Any]) -> None:
    try:
        data = jpeg(content, size, mode, **options)
    except OSError:
        return  # Pillow's own buffer is too small for some of these
    assert set(decode_image(data).shape[:2]) == set(size)
    decode_image(data + b"trailing bytes \xff\xd8\xff\xda\xff\xc0")
    _check_padded(_structure(data), data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["noise", "smooth", "dots"]),
    st.sampled_from([(33, 200), (96, 144), (300, 260), (500, 700)]),
    st.sampled_from(["RGB", "L", "CMYK"]),
    OPTIONS,
    st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
)
def test_every_cut_with_its_end_put_back_is_refused(
    content: str, size: tuple[int, int], mode: str, options: dict[str, Any], share: float
) -> None:
    try:
        data = jpeg(content, size, mode, **options)
    except OSError:
        return
    assert reason(cut(data, share)) in ("corrupt", "truncated")


@pytest.mark.parametrize(("content", "progressive"), [("noise", False), ("noise", True), ("smooth", False)])
def test_half_a_picture_would_be_half_grey(content: str, progressive: bool) -> None:
    """What Pillow alone makes of it, so that the test above is about something."""
    half = cut(jpeg(content, progressive=progressive, quality=90), 0.6)
    shown = np.array(Image.open(io.BytesIO(half)).convert("RGB"), dtype=int)
    assert np.abs(shown - pixels(content, 96, 144)).mean() > 1
    with pytest.raises(MediaError, match=r"image: the JPEG"):
        decode_image(half)


def test_a_progressive_file_that_was_cut_between_two_scans_is_refused() -> None:
    data = jpeg("smooth", progressive=True)
    scans = _structure(data).scans
    assert len(scans) > 5
    assert [reason(data[: scan.end] + END) for scan in scans[:-1]] == ["truncated"] * (len(scans) - 1)
    decode_image(data[: scans[-1].end] + END)


@pytest.mark.parametrize("content", ["noise", "smooth", "flat"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_header_that_declares_more_than_the_data_hold_is_refused(content: str, progressive: bool) -> None:
    data = bytearray(jpeg(content, progressive=progressive))
    frame = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[frame + 5 : frame + 9] = (1000).to_bytes(2, "big") * 2
    assert reason(bytes(data)) in ("corrupt", "truncated")


@pytest.mark.parametrize("lost", [1, 2, 8])
@pytest.mark.parametrize("progressive", [False, True])
def test_lost_restart_markers_are_noticed(lost: int, progressive: bool) -> None:
    """With the data between them, or without."""
    data = jpeg("noise", restart_marker_blocks=3, progressive=progressive)
    scan = _structure(data).scans[0]
    marks = [i for i in range(scan.start, scan.end) if data[i] == 0xFF and 0xD0 <= data[i + 1] <= 0xD7]
    first, last = marks[4], marks[4 + lost]
    assert reason(data[:first] + data[last:]) == "corrupt"
    alone = bytearray(data)
    for mark in reversed(marks[4 : 4 + lost]):
        del alone[mark : mark + 2]
    assert reason(bytes(alone)) == "corrupt"


def test_bytes_lost_before_a_restart_marker_are_noticed() -> None:
    data = jpeg("noise", restart_marker_blocks=3)
    scan = _structure(data).scans[0]
    mark = next(i for i in range(scan.start + 400, scan.end) if data[i] == 0xFF and 0xD0 <= data[i + 1] <= 0xD7)
    assert reason(data[: mark - 40] + data[mark:]) in ("corrupt", "truncated")


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_samplings_that_only_libjpeg_reads_are_checked_too(share: float) -> None:
    data = jpeg("noise", (300, 260), "CMYK", subsampling=1)
    check_whole(data)
    with pytest.raises(MediaError, match="truncated: image: the JPEG's data end before its picture does"):
        check_whole(cut(data, share))


def test_a_file_of_several_pictures_is_its_first() -> None:
    more = [Image.fromarray(pixels("smooth", 96, 144)), Image.fromarray(pixels("noise", 96, 144))]
    data = jpeg("noise", kind="MPO", save_all=True, append_images=more)
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert decode_image(data).shape == (96, 144, 3)
    assert reason(cut(data, 0.5) + data) in ("corrupt", "truncated"), "whole pictures behind it do not complete it"


@pytest.mark.parametrize("size", [(64, 64), (300, 260)])
@pytest.mark.parametrize("progressive", [False, True])
def test_markers_may_be_filled_up(size: tuple[int, int], progressive: bool) -> None:
    """With bytes 0xFF in front, as the standard allows."""
    data = jpeg("noise", size, restart_marker_blocks=2, progressive=progressive)
    expected = decode_image(data)
    inside = [(scan.start, scan.end) for scan in _structure(data).scans]
    filled, at = b"", 0
    for place in range(2, len(data) - 1):
        coded = any(start <= place < end for start, end in inside)
        restart = 0xD0 <= data[place + 1] <= 0xD7
        header = any(start - 14 < place < start for start, _ in inside) and data[place + 1] == 0xDA
        if data[place] == 0xFF and ((coded and restart) or header or place == len(data) - 2):
            filled, at = filled + data[at:place] + b"\xff\xff", place
    np.testing.assert_array_equal(decode_image(filled + data[at:]), expected)


def test_pictures_of_cameras_that_write_motion_jpeg() -> None:
    import av

    for sampling in ("yuvj420p", "yuvj422p", "yuvj444p"):
        coder = av.CodecContext.create("mjpeg", "w")
        coder.width, coder.height, coder.pix_fmt, coder.time_base = 161, 97, sampling, Fraction(1, 10)
        frame = av.VideoFrame.from_ndarray(pixels("noise", 97, 161), format="rgb24").reformat(format=sampling)
        (packet,) = [*coder.encode(frame), *coder.encode(None)]
        assert decode_image(bytes(packet)).shape == (97, 161, 3)
        assert reason(cut(bytes(packet), 0.5)) in ("corrupt", "truncated")


def test_one_more_restart_marker_at_the_end_does_no_harm() -> None:
    """Some cameras write it."""
    data = jpeg("noise", (64, 64), "L", restart_marker_blocks=8)
    scan = _structure(data).scans[0]
    decode_image(data[: scan.end] + bytes([0xFF, 0xD0 + 7]) + data[scan.end :])
