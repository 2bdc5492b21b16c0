"""Pixels that are kept of held-out questions: which frames, at their size, as they were saved, and files of earlier versions."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.pages import ROWS, good, picture, poor, record, save_frames_of
from tests.support.pages import make_run as make_evaluated
from vlmrl.errors import StorageError
from vlmrl.extras.pages.runfiles import (
    MAX_STRIP_PIXELS,
    frames_of,
    kept_frames,
    make_frames,
    read_frames,
    safe_name,
    save_media,
    write_frames,
)
from vlmrl.extras.pages.view.view import View


def kept(run: Path, sample_id: str, **shown: Any) -> Path:
    """Keep the frames of a question for the page of a run."""
    return write_frames(run / "eval" / "frames", make_frames(sample_id, **shown))


def test_frames_on_disk_are_what_was_saved(tmp_path: Path) -> None:
    save_frames_of(tmp_path, list(ROWS))
    read = read_frames(tmp_path, [poor()])
    assert [f.sample_id for f in read] == list(ROWS)
    for frames in read:
        saved, made = (json.dumps(dataclasses.asdict(x), sort_keys=True) for x in (frames, frames_of(*ROWS[frames.sample_id])))
        assert saved == made


def test_frames_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Without what the row says of its answer: boxes are not drawn, spans of time are."""
    run = make_evaluated(tmp_path / "run", {"rl": good()}, frames=False)
    path = save_media(run / "eval" / "frames", *ROWS["box-1"])
    value = json.loads(path.read_text())
    del value["target"]
    path.write_text(json.dumps(value))
    kept(run, "span-1", frames=picture(count=8), times=np.arange(8) / 2, question="?", gold=(1.0, 3.0), duration=4.0)
    view = View([run])
    box, span = (view.document(f"question/{name}") for name in ("box-1", "span-1"))
    assert box["marks"]["shapes"] == box["answers"][0]["marks"]["shapes"] == ()
    assert "kept without the row's coordinate frame" in box["marks"]["problems"][0]
    assert [(one["start"], one["end"]) for one in span["marks"]["spans"]] == [(1.0, 3.0)]
    assert [(one["start"], one["end"]) for one in span["answers"][0]["marks"]["spans"]] == [(1.0, 2.5)]


@pytest.mark.parametrize("change", [{"frame": "percent"}, {"unit": "hours"}, {"gt": 3}, {"pictures": "x"}])
def test_a_damaged_target_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = save_media(tmp_path, *ROWS["box-1"])
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "target": {**value["target"], **change}}))
    with pytest.raises(StorageError, match="not frames of a question"):
        read_frames(tmp_path, [])


def test_less_is_kept_of_a_long_video_at_full_size(tmp_path: Path) -> None:
    frames = np.zeros((40, 300, 300, 3), dtype=np.uint8)
    frames[:] = np.arange(40, dtype=np.uint8)[:, None, None, None]
    path = kept(tmp_path, "long", frames=frames, times=np.arange(40) / 2, question="?", gold=None, duration=None)
    saved = json.loads(path.read_text())
    places = [int(2 * t) for t in saved["times"]]
    assert (saved["count"], saved["total"], saved["size"]) == (16, 40, [300, 300])  # 16 * 90,000 <= 1,500,000 < 17 * 90,000
    assert (places[0], places[-1]) == (0, 39)
    assert {b - a for a, b in itertools.pairwise(places)} <= {2, 3}
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(saved["strip"]))))
    assert image.shape == (300, 16 * 300, 3)
    assert list(image[0, ::300, 0]) == places


@pytest.mark.parametrize(("count", "pixels"), [(1, 10), (7, 10), (3, MAX_STRIP_PIXELS), (500, 50_000), (2, 10**9), (1, 10**9)])
def test_kept_frames(count: int, pixels: int) -> None:
    found = kept_frames(count, pixels)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, count - 1)
    assert len(found) == count or len(found) <= max(2, MAX_STRIP_PIXELS // pixels)


def test_frames_of_an_image_and_of_wrong_arrays(tmp_path: Path) -> None:
    image = np.zeros((1, 28, 28, 3), dtype=np.uint8)
    saved = json.loads(kept(tmp_path, "i", frames=image, times=None, question="?", gold=None, duration=None).read_text())
    assert (saved["times"], saved["duration"], saved["count"]) == (None, None, 1)
    with pytest.raises(ValueError, match="expected uint8"):
        kept(tmp_path, "i", frames=image.astype(np.float32), times=None, question="?", gold=None, duration=None)
    with pytest.raises(ValueError, match="2 times for 1 frames"):
        kept(tmp_path, "i", frames=image, times=[0.0, 1.0], question="?", gold=None, duration=None)


def test_safe_names_stay_in_the_folder_and_differ() -> None:
    names = ["../../etc/passwd", "a/b", "a_b", "a" * 500, "..", "", "\x00", "ä"]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name) and len(name) < 80 for name in safe)


def test_imported_answers_without_counts_are_shown(tmp_path: Path) -> None:
    imported = record("box-1", "x", 0.5, n_in=None, n_out=None, finish=None, format_ok=None)
    run = make_evaluated(tmp_path / "run", {"base": [imported]})
    assert View([run]).document("question/box-1")["answers"][0]["tokens"] is None
