"""Stand-in media for tests of dataset preparation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.standins import fill, image_bytes
from vlmrl.media.headers import image_size
from vlmrl.media.video import probe_video


def test_standins_are_the_same_every_time_and_fit_the_row(tmp_path: Path):
    assert image_bytes("a.png") == image_bytes("a.png") != image_bytes("b.png")
    rows = [{"image": "p/a.jpg", "meta": {"size": [40, 30]}}, {"video": "v.mp4", "meta": {"duration": 5}}]
    assert fill(tmp_path, rows) == ["p/a.jpg", "v.mp4"]
    assert image_size((tmp_path / "p/a.jpg").read_bytes()) == (30, 40)  # height, width
    assert np.isclose(probe_video(tmp_path / "v.mp4").duration, 5)
    assert fill(tmp_path, rows) == []
