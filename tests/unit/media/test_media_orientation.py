"""Turned and mirrored videos are shown as `ffmpeg` shows them, by both decoders, at the size that headers promise."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.media import frame_number, make_video, numbered_frames, read_video, set_matrix
from vlmrl.errors import MediaError
from vlmrl.media.iso import read_iso
from vlmrl.media.rotation import MIRRORED, orientation_of, upright
from vlmrl.media.sampling import Decoder
from vlmrl.media.video import probe_video, read_video_info

DECODERS: list[Any] = ["pyav"]
if importlib.util.find_spec("decord") is not None:
    DECODERS.append("decord")

FILTERS = {
    (1, 0, 0, 1): [],
    (-1, 0, 0, 1): [("hflip", None)],
    (1, 0, 0, -1): [("vflip", None)],
    (-1, 0, 0, -1): [("hflip", None), ("vflip", None)],
    (0, 1, -1, 0): [("transpose", "clock")],
    (0, -1, 1, 0): [("transpose", "cclock")],
    (0, 1, 1, 0): [("transpose", "cclock_flip")],
    (0, -1, -1, 0): [("transpose", "clock_flip")],
}
"""What ffmpeg's autorotate puts in front of all other filters (fftools/ffmpeg_filter.c): by the angle of `av_display_rotation_get`, and
by the signs of a, c and d where the angle is the same for a turn and for a mirror."""


def as_ffmpeg_shows(path: Path, filters: list[tuple[str, str | None]]) -> np.ndarray:
    """The first frame through FFmpeg's own filters, uint8 [H, W, 3]."""
    import av
    import av.filter

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frame = next(container.decode(stream))
        if not filters:
            return frame.to_ndarray(format="rgb24")
        graph = av.filter.Graph()
        nodes = [graph.add_buffer(template=stream), *(graph.add(name, how) for name, how in filters), graph.add("buffersink")]
        graph.link_nodes(*nodes).configure()
        graph.push(frame)
        return graph.pull().to_ndarray(format="rgb24")


@pytest.mark.parametrize("matrix", FILTERS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_videos_are_shown_as_ffmpeg_shows_them(tmp_path: Path, matrix: tuple[int, int, int, int], decoder: Decoder) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(10, 48, 80), fps=10)
    set_matrix(path, *matrix)
    expected = as_ffmpeg_shows(path, FILTERS[matrix])
    shown = read_video(path, fps=2, min_frames=2, max_frames=16, decoder=decoder)
    assert shown.frames.shape[1:] == expected.shape == ((80, 48, 3) if matrix[0] == 0 else (48, 80, 3))
    assert np.abs(shown.frames[0].astype(int) - expected).max() <= 3
    assert probe_video(path)[:2] == expected.shape[1::-1]
    info, track = read_video_info(io.BytesIO(path.read_bytes()))
    assert (info[:2], track is not None) == (expected.shape[1::-1], True), "headers alone say the same"


@pytest.mark.parametrize("matrix", FILTERS)
def test_a_frame_that_was_stored_the_other_way_round_is_upright(tmp_path: Path, matrix: tuple[int, int, int, int]) -> None:
    """Without FFmpeg's filters: the number drawn into each frame can be read, and the red quarter is at its place."""
    a, b, c, d = matrix
    frames = numbered_frames(6)
    # pixel (x, y) of what is stored is shown at (a x + c y, b x + d y), from the corner that is least
    height, width = (48, 64) if a else (64, 48)
    ys, xs = np.mgrid[:height, :width]
    to_x, to_y = a * xs + c * ys, b * xs + d * ys
    stored = frames[:, to_y - to_y.min(), to_x - to_x.min()]
    path = make_video(tmp_path / "a.mp4", stored, fps=10)
    set_matrix(path, *matrix)
    shown = read_video(path, fps=10, min_frames=2, max_frames=16)
    assert [frame_number(frame) for frame in shown.frames] == list(range(6))
    assert np.abs(shown.frames.astype(int) - frames).mean() < 8


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        ((2, 0, 0, 2), 0),
        ((2, 0, 0, 1), 0),
        ((-0.5, 0, 0, 1.5), MIRRORED),
        ((0, 3, 1, 0), MIRRORED + 1),
        ((1, 0.01, -0.01, 1), 0),
        ((0, 0, 0, 0), 0),
        ((1, 0, 0, 0), 0),
    ],
)
def test_scales_and_empty_matrices_change_nothing_else(tmp_path: Path, matrix: tuple[float, ...], orientation: int) -> None:
    a, b, c, d = matrix
    assert orientation_of(a, b, c, d) == orientation
    path = make_video(tmp_path / "a.mp4", numbered_frames(4), fps=10)
    stored = read_video(path, fps=10, min_frames=2, max_frames=4).frames
    set_matrix(path, a, b, c, d)
    assert read_iso(io.BytesIO(path.read_bytes())) is None
    shown = read_video(path, fps=10, min_frames=2, max_frames=4).frames
    np.testing.assert_array_equal(shown[1], upright(stored[1], orientation))


@pytest.mark.parametrize("matrix", [(0.7071, 0.7071, -0.7071, 0.7071), (1, 0.5, 0, 1), (1, 0, 0.3, 1), (0, 1, 0.5, 1), (1, 0, 1, 0.001)])
def test_other_angles_and_shears_are_refused(tmp_path: Path, matrix: tuple[float, ...]) -> None:
    a, b, c, d = matrix
    path = make_video(tmp_path / "a.mp4", numbered_frames(4), fps=10)
    set_matrix(path, a, b, c, d)
    for read in (probe_video, lambda p: read_video(p, fps=2, min_frames=2, max_frames=4)):
        with pytest.raises(MediaError, match=r"format: video: its display matrix .* turns by other than quarters, or shears"):
            read(path)
    with pytest.raises(MediaError, match="format"):
        read_video_info(io.BytesIO(path.read_bytes()))
