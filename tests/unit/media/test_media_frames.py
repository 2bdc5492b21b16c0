"""A video given as pictures with stated times is processed as a file of the same frames is: same frames, times, grid and errors by name."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.media import frame_number, make_video, numbered_frames
from tests.unit.media.test_media_store import SETTINGS, store
from vlmrl.data.row import parse_row
from vlmrl.errors import MediaError
from vlmrl.media import frames as frames_module
from vlmrl.types import MediaRef


def pictures(folder: Path, count: int, name: str = "{:d}.png", size: tuple[int, int] = (48, 64)) -> list[str]:
    folder.mkdir(exist_ok=True)
    names = [name.format(i) for i in range(count)]
    for one, pixels in zip(names, numbered_frames(count, *size), strict=True):
        Image.fromarray(pixels).save(folder / one)
    return [f"{folder.name}/{one}" for one in names]


def video(frames: object, **clock: Any) -> MediaRef:
    row = {"id": "1", "task": "t", "answer_type": "number", "prompt": "How many?", "answer": "1", "gt": {"number": 1}}
    return parse_row({**row, "video": {"frames": frames, **clock}}, source="rows.jsonl:1", media_root="").media[0]


def test_frames_are_chosen_as_of_a_file(tmp_path: Path) -> None:
    """Irregular times, more frames than are shown, and fewer."""
    gaps = np.array([0.1, 0.9, 0.05, 0.45, 2.0, 0.3] * 5)
    times = (np.cumsum(gaps) - gaps[0]).round(3).tolist()
    paths = pictures(tmp_path / "f", len(times))
    make_video(tmp_path / "v.mp4", numbered_frames(len(times)), times=times, last=float(times[-1] / (len(times) - 1)))
    for how in ({"fps": 2.0}, {"fps": 9.0, "max_frames": 200}, {"fps": 0.1, "min_frames": 6}, {"fps": 4.0, "max_frames": 8}):
        media = store(**how)
        ref = video(paths, times=times)
        shown, file = media.get(ref, tmp_path), media.get(MediaRef(kind="video", path="v.mp4"), tmp_path)
        assert [frame_number(f) for f in shown.frames] == [frame_number(f) for f in file.frames]
        assert shown.times is not None
        assert file.times is not None
        assert shown.times.tolist() == pytest.approx(file.times.tolist(), abs=1e-3)
        assert shown.duration == pytest.approx(file.duration, abs=2e-3)
        assert shown.original_size == file.original_size
        assert shown.handle.grid_thw == file.handle.grid_thw
        assert shown.handle.seconds_per_grid == pytest.approx(file.handle.seconds_per_grid, abs=1e-3)
        assert dataclasses.replace(media.plan(ref, tmp_path), key=shown.handle.key) == shown.handle


def test_step_times_are_the_stated_ones(tmp_path: Path) -> None:
    """What a model that reads times as text is told."""
    media = store()
    media.step_times = True
    ref = video(pictures(tmp_path / "f", 4), times=[0, 1.5, 2, 7])
    handle = media.get(ref, tmp_path).handle
    assert handle.step_times is not None
    assert dataclasses.replace(media.plan(ref, tmp_path), key=handle.key) == handle
    # every half second up to 7 + 7/3 s, at most 16: 16 requests over 9.33 s, 0.583 s apart
    asked = np.arange(16) * (28 / 3 / 16)
    on_screen = [max(t for t in (0, 1.5, 2, 7) if t <= a + 1e-3) for a in asked]
    assert handle.step_times == tuple((on_screen[i] + on_screen[i + 1]) / 2 for i in range(0, 16, 2))


def test_a_folder_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    pictures(tmp_path / "f", 12, "frame_{:d}.png")
    (tmp_path / "f" / ".DS_Store").write_bytes(b"x")
    shown = store(max_frames=12).get(video("f", fps=2), tmp_path)
    assert [frame_number(f) for f in shown.frames] == list(range(12))
    assert (shown.duration, shown.handle.seconds_per_grid) == (6.0, 1.0)
    same = store(max_frames=12).get(video([f"f/frame_{i}.png" for i in range(12)], fps=2.0), tmp_path)
    assert same.handle.key == shown.handle.key, "the content is the pictures and their times, however they are named"


def test_the_key_is_that_of_all_pictures_and_times(tmp_path: Path) -> None:
    """Also of those that are not shown, as with a file."""
    paths = pictures(tmp_path / "f", 40)
    media = store(max_frames=4)
    keys = {media.get(video(paths, fps=2), tmp_path).handle.key, media.get(video(paths, fps=4), tmp_path).handle.key}
    assert media.get(video(paths, times=[i / 2 for i in range(40)]), tmp_path).handle.key in keys, "the same times, said otherwise"
    keys.add(media.get(video([*paths[:7], paths[8], paths[7], *paths[9:]], fps=2), tmp_path).handle.key)
    Image.new("RGB", (64, 48)).save(tmp_path / paths[3])
    keys.add(media.get(video(paths, fps=2), tmp_path).handle.key)
    assert len(keys) == 4


def test_unchanged_frames_are_not_read_again(tmp_path: Path) -> None:
    media, ref = store(), video(pictures(tmp_path / "f", 6), fps=2)
    first = media.get(ref, tmp_path)
    assert media.get(ref, tmp_path) is first
    assert media.get_key(first.handle.key) is first
    assert (media.stats["opened"], media.stats["decoded"]) == (1, 1)


def test_workers_decode_the_same(tmp_path: Path) -> None:
    ref = video(pictures(tmp_path / "f", 9), times=[0, 0.2, 0.9, 1.0, 1.1, 2, 3, 3.5, 4])
    here, there = store(), store(workers=1)
    try:
        a, b = here.get(ref, tmp_path), there.get(ref, tmp_path)
    finally:
        there.close()
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.pixel_values, b.pixel_values)
    assert a.handle == b.handle


def test_orientation_of_each_picture_is_applied(tmp_path: Path) -> None:
    pixels = numbered_frames(2)
    (tmp_path / "f").mkdir()
    for i, frame in enumerate(pixels):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(np.ascontiguousarray(np.rot90(frame))).save(tmp_path / "f" / f"{i}.png", exif=exif)
    shown = store().get(video("f", fps=2), tmp_path)
    assert shown.original_size == (48, 64)
    assert [frame_number(f) for f in shown.frames] == [0, 1]


def test_what_is_wrong_with_the_pictures_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = pictures(tmp_path / "f", 4)

    def problem(ref: MediaRef, *, planned: bool = True) -> str:
        with pytest.raises(MediaError) as caught:
            store().get(ref, tmp_path)
        if planned:
            with pytest.raises(MediaError) as early:
                store().plan(ref, tmp_path)
            assert early.value.reason == caught.value.reason
        return str(caught.value)

    assert problem(video([*paths, "f/9.png"], fps=2)) == f"missing: f/9.png: no such file under {tmp_path}"
    assert "missing: g: no such file" in problem(video("g", fps=2))
    assert "3 times are stated for 4 frames" in problem(video("f", times=[0, 1, 2]))
    assert "is not a folder" in problem(video("f/0.png", fps=2))
    (tmp_path / "e").mkdir()
    assert "holds no picture" in problem(video("e", fps=2))
    (tmp_path / "e" / "a.bmp").write_bytes(b"BM")
    assert "'a.bmp', which is no picture" in problem(video("e", fps=2))
    Image.new("RGB", (32, 48)).save(tmp_path / "f" / "odd.png")
    assert "f/odd.png has 32x48 pixels, f/0.png has 64x48" in problem(video([*paths, "f/odd.png"], fps=2))
    whole = (tmp_path / paths[2]).read_bytes()
    (tmp_path / "f" / "half.png").write_bytes(whole[: len(whole) // 2])
    assert "f/half.png" in problem(video([*paths, "f/half.png"], fps=2), planned=False)
    digest = hashlib.sha256((tmp_path / paths[1]).read_bytes()).hexdigest()
    assert store().get(video([paths[0], {"path": paths[1], "sha256": digest}], fps=2), tmp_path)
    assert "hash_mismatch: f/0.png" in problem(video([{"path": paths[0], "sha256": digest}, paths[1]], fps=2), planned=False)
    assert "5400 s long" in problem(video(paths, times=[0, 10, 20, 4050]))
    (tmp_path / "out").symlink_to("/etc")
    assert problem(video("out", fps=2)).startswith("forbidden: out")
    monkeypatch.setattr(frames_module, "MAX_FRAMES", 3)
    assert "4 frames, the limit is 3" in problem(video(paths, fps=2))


def test_a_frames_own_hash_is_compared_also_when_it_was_read_before(tmp_path: Path) -> None:
    paths, media = pictures(tmp_path / "f", 2), store()
    media.get(video(paths, fps=2), tmp_path)
    with pytest.raises(MediaError, match="hash_mismatch"):
        media.get(video([{"path": paths[0], "sha256": "0" * 64}, paths[1]], fps=2), tmp_path)


def test_one_picture_is_a_video_too(tmp_path: Path) -> None:
    shown = store().get(video(pictures(tmp_path / "f", 1), times=[0]), tmp_path)
    assert (len(shown.frames), shown.duration) == (SETTINGS.min_frames, 0.0)
