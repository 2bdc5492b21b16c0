"""Several views of one file from one decoding: each is, bit for bit, what decoding for it alone gives."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.media import make_video, numbered_frames
from tests.unit.media.test_media_store import clip, image, store
from tests.unit.media.test_media_workers import SIZING, same
from vlmrl.errors import MediaError
from vlmrl.media import container
from vlmrl.media.decode import Stored, decode_views
from vlmrl.media.frames import read_bundle
from vlmrl.media.workers import WorkerPool
from vlmrl.types import MediaRef

VIEWS = (
    SIZING,
    dataclasses.replace(SIZING, min_pixels=14 * 14 * 4, max_pixels=56 * 56),
    dataclasses.replace(SIZING, fps=5.0, max_frames=40, min_frames=8),
    dataclasses.replace(SIZING, fps=0.5, min_frames=2, max_frames=4),
)
"""Other pixels, more frames, fewer frames."""
DECODERS: list[Any] = ["pyav", *(["decord"] if importlib.util.find_spec("decord") else [])]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, Stored]]:
    """A picture, a regular and an irregular video, and a video as pictures."""
    root = tmp_path_factory.mktemp("files")
    regular = make_video(root / "a.mp4", numbered_frames(40, 64, 84), fps=10)
    irregular = make_video(root / "b.mp4", numbered_frames(8, 64, 84), times=[0, 0.1, 0.2, 0.3, 3, 3.1, 9, 9.1])
    (root / "frames").mkdir()
    for number, frame in enumerate(numbered_frames(12, 64, 84)):
        Image.fromarray(frame).save(root / "frames" / f"{number}.png")
    picture = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(picture, "PNG")
    bundle = read_bundle(MediaRef(kind="video", path="frames", fps=4.0), root)
    return {
        "picture": (picture.getvalue(), "image"),
        "regular": (regular.read_bytes(), "video"),
        "irregular": (irregular.read_bytes(), "video"),
        "pictures": (bundle.data, "frames"),
    }


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", ["picture", "regular", "irregular", "pictures"])
def test_each_view_is_that_of_decoding_for_it_alone(files: dict[str, tuple[bytes, Stored]], name: str, decoder: Any) -> None:
    data, kind = files[name]
    views = [dataclasses.replace(view, decoder=decoder) for view in VIEWS]
    found = decode_views(data, kind, views)
    alone = [decode_views(data, kind, [view])[0] for view in views]
    assert all(same(one, other) for one, other in zip(found, alone, strict=True))
    if kind == "video":
        assert len({one.frames.shape for one in found}) == len(VIEWS), "the views differ"


def test_a_file_is_decoded_once_for_all_of_them(files: dict[str, tuple[bytes, Stored]], monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = container.decode, list[int]()

    def counted(data: bytes, header: container.Header) -> Iterator[container.Decoded]:
        seen.append(0)
        for decoded in real(data, header):
            seen[-1] += 1
            yield decoded

    monkeypatch.setattr(container, "decode", counted)
    decode_views(*files["regular"], VIEWS)
    assert len(seen) == 1
    assert 35 < seen[0] <= 40


def test_workers_give_all_views(files: dict[str, tuple[bytes, Stored]]) -> None:
    pool = WorkerPool(SIZING, count=1, deadline=60)
    try:
        for data, kind in files.values():
            found = pool.views(data, kind, VIEWS[1:])
            assert all(same(one, other) for one, other in zip(found, decode_views(data, kind, VIEWS), strict=True))
        assert pool.stats.started == 1
    finally:
        pool.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_store_fills_another_one_from_its_own_decoding(tmp_path: Path, workers: int) -> None:
    make_video(tmp_path / "a.mp4", numbered_frames(40, 64, 84), fps=10)
    Image.fromarray(np.zeros((64, 84, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    own, other, alone = (store(max_pixels=size, workers=workers if size < 10000 else 0) for size in (56 * 56, 112 * 112, 112 * 112))
    for ref in (clip(), image()):
        entry = own.get(ref, tmp_path, also=other)
        shown, expected = other.get(ref, tmp_path), alone.get(ref, tmp_path)
        assert shown.handle == expected.handle != entry.handle
        assert shown.frames.tobytes() == expected.frames.tobytes()
        assert not shown.frames.flags.writeable
        assert other.digest(ref, tmp_path) == own.digest(ref, tmp_path)
    assert [one.stats["decoded"] for one in (own, other, alone)] == [2, 0, 2]
    assert [one.stats["opened"] for one in (own, other, alone)] == [2, 0, 2]
    assert own.get(clip(), tmp_path, also=other).handle.key in own._entries
    assert own.stats["decoded"] == 2
    own.close()


def test_what_the_other_store_has_dropped_it_makes_again(tmp_path: Path) -> None:
    make_video(tmp_path / "a.mp4", numbered_frames(40, 64, 84), fps=10)
    own, other = store(max_pixels=56 * 56), store(cache_bytes=1000)
    own.get(clip(), tmp_path, also=other)
    assert other.cached_bytes == 0
    assert other.get_key(other.key_of(clip(), str(other.digest(clip(), tmp_path)))).frames.shape[0] == 8
    assert other.stats["decoded"] == 1


def test_a_view_that_cannot_be_made_is_the_other_stores_error_alone(tmp_path: Path) -> None:
    """A thin picture fits into the larger frames and not into the small ones."""
    Image.fromarray(np.zeros((20, 400, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    own, other = store(), store(min_pixels=1, max_pixels=28 * 28)
    assert own.get(image(), tmp_path, also=other).handle.tokens > 0
    with pytest.raises(MediaError, match="aspect"):
        other.get(image(), tmp_path)
    with pytest.raises(MediaError, match="missing"):
        own.get(image("none.png"), tmp_path, also=other)
