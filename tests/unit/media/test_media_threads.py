"""The media store under several threads: each medium is made once, the same bits as alone, statistics that add up."""

from __future__ import annotations

import collections
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.media import make_video, numbered_frames, truncate
from tests.support.tiny import Tiny
from tests.unit.media.test_media_store import clip, fake_patchify, image, store
from vlmrl.errors import MediaError
from vlmrl.media.resize import single_thread
from vlmrl.media.store import MediaStore
from vlmrl.types import MediaRef

THREADS, ROUNDS = 8, 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "copy-of-a.png").write_bytes((tmp_path / "a.png").read_bytes())
    make_video(tmp_path / "a.mp4", numbered_frames(40, 56, 84), fps=10)
    return tmp_path


REFS = [image("a.png"), image("b.png"), image("c.png"), image("copy-of-a.png"), clip()]


class Counting:
    """A patchify that counts its calls by content, and lingers so that threads meet."""

    def __init__(self) -> None:
        self.calls: collections.Counter[bytes] = collections.Counter()

    def __call__(self, frames: np.ndarray, kind: Any) -> Any:
        self.calls[frames.tobytes()] += 1
        threading.Event().wait(0.01)
        return fake_patchify(frames, kind)


def storm(media: MediaStore, root: Path, refs: list[MediaRef]) -> None:
    """THREADS threads that start together, each asking ROUNDS times, by file and by key, in an order of its own."""
    together = threading.Barrier(THREADS, timeout=60)
    alone = store()
    expected = {ref.path: alone.get(ref, root) for ref in refs}

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        together.wait()
        for _ in range(ROUNDS):
            ref = refs[int(draw.integers(len(refs)))]
            entry = media.get(ref, root)
            again = media.get_key(entry.handle.key)
            for found in (entry, again):
                np.testing.assert_array_equal(found.frames, expected[ref.path].frames)
                np.testing.assert_array_equal(found.pixel_values, expected[ref.path].pixel_values)
                assert found.handle == expected[ref.path].handle

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


def test_each_content_is_decoded_once_and_each_file_read_once(root: Path) -> None:
    patchify = Counting()
    media = store(patchify)
    storm(media, root, REFS)
    assert set(patchify.calls.values()) == {1}
    assert len(patchify.calls) == 4, "copy-of-a.png has the content of a.png"
    stats = media.stats
    assert (stats["decoded"], stats["opened"], stats["evicted"]) == (4, 5, 0)
    # every call found an entry or made it; by file the copy found that of the original
    assert stats["cache_hits"] + stats["decoded"] == 2 * THREADS * ROUNDS
    assert media.cached_bytes == sum(entry.nbytes for entry in media._entries.values())
    assert len(media._key_locks) == 0


def test_eviction_under_threads_keeps_the_budget_and_the_bits(root: Path) -> None:
    size = store().get(image("a.png"), root).nbytes
    media = store(cache_bytes=size + size // 2)  # room for one picture, none for the video
    storm(media, root, REFS)
    assert media.cached_bytes == sum(entry.nbytes for entry in media._entries.values()) <= media.settings.cache_bytes
    assert media.stats["cache_hits"] + media.stats["decoded"] == 2 * THREADS * ROUNDS
    assert media.stats["evicted"] > 0
    assert len(media._key_locks) == 0


def test_frames_that_two_threads_put_at_once_are_counted_once() -> None:
    """Both look for them, neither finds them, and both make the entry."""
    frames, together = numbered_frames(1, 56, 56), threading.Barrier(2, timeout=60)
    patchify = Counting()

    def cut(*given: Any) -> Any:
        together.wait()
        return patchify(*given)

    media = store(cut)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: media.put(frames.copy(), "image"), range(2))
    assert one.handle == other.handle
    assert media.cached_bytes == one.nbytes == sum(entry.nbytes for entry in media._entries.values())


def test_a_fault_reaches_every_thread_that_asked(root: Path) -> None:
    truncate(make_video(root / "cut.mp4", numbered_frames(40, 56, 84), fps=10), 0.5)
    media, together = store(), threading.Barrier(4, timeout=60)
    with pytest.raises(MediaError) as alone:
        store().get(clip("cut.mp4"), root)

    def work(_: int) -> tuple[str, str]:
        together.wait()
        with pytest.raises(MediaError) as caught:
            media.get(clip("cut.mp4"), root)
        return caught.value.reason, str(caught.value)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    assert found == [(alone.value.reason, str(alone.value))] * 4
    assert (media.stats["decoded"], media.cached_bytes, len(media._key_locks)) == (0, 0, 0)


def test_waiting_is_counted_where_one_waits(root: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(frames: np.ndarray, kind: Any) -> Any:
        inside.set()
        assert go.wait(60)
        return fake_patchify(frames, kind)

    media = store(slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: (media.get(image(), root), media.waited())[1])
        assert inside.wait(60)
        second = pool.submit(lambda: (media.get(image(), root), media.waited())[1])
        turn = ("image", next(iter(media._hashes)))
        assert any(threading.Event().wait(0.001) or media._key_locks._locks[turn][1] == 2 for _ in range(20000)), "the second never waits"
        go.set()
        assert first.result(60) > 0
        assert second.result(60) > 0
    assert media.waited() == 0.0, "this thread asked for nothing"
    assert first.result() >= media.stats["decode_seconds"] > 0
    assert (media.stats["decoded"], media.stats["cache_hits"]) == (1, 1)


def test_the_real_processor_under_threads(tiny: Tiny) -> None:
    """transformers' processors give the same bits from several threads as from one."""
    refs = [(ref, tiny.encoder.root(sample)) for sample in tiny.samples[:12] for ref in sample.media]

    def fresh() -> MediaStore:
        b = tiny.bundle
        sizes = {
            "patch_size": b.patch_size,
            "merge_size": b.merge_size,
            "temporal_patch_size": b.temporal_patch_size,
            "patch_dtype": b.patch_dtype,
        }
        return MediaStore(tiny.store.settings, patchify=b.patchify, fingerprint=b.fingerprint, step_times=b.step_times, **sizes)

    one, many = fresh(), fresh()
    expected = [one.get(ref, root) for ref, root in refs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: many.get(*pair), refs * 2))
    for a, b in zip(found, expected * 2, strict=True):
        assert a.handle == b.handle
        np.testing.assert_array_equal(a.pixel_values, b.pixel_values)
    assert many.stats["decoded"] == one.stats["decoded"]
    # the size that is foreseen from headers is that of the entry, by file and by handle
    assert [fresh().weigh(ref, root) for ref, root in refs[:4]] == [entry.nbytes for entry in expected[:4]]
    assert [one.weigh(ref, root) for ref, root in refs] == [one.weight(e.handle) for e in expected] == [e.nbytes for e in expected]


def test_weighing_changes_nothing(root: Path) -> None:
    media = store()
    media.get(image("a.png"), root)
    media.get(image("b.png"), root)
    before = dict(media.stats), list(media._entries)
    assert media.weigh(image("a.png"), root) == media.get_key(before[1][0]).nbytes
    media.get(image("b.png"), root)
    now = dict(media.stats)
    media.weigh(image("a.png"), root)
    media.weigh(image("c.png"), root)
    assert (dict(media.stats), list(media._entries)) == (now, before[1])
    with pytest.raises(MediaError):
        media.weigh(image("none.png"), root)


def test_the_number_of_torch_threads_is_each_threads_own() -> None:
    """What `single_thread` relies on: whoever decodes elsewhere does not change how the main thread computes."""
    before = torch.get_num_threads()
    inside, go = threading.Event(), threading.Event()

    def decode() -> int:
        with single_thread():
            inside.set()
            assert go.wait(60)
            return torch.get_num_threads()

    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(decode)
            assert inside.wait(60)
            assert torch.get_num_threads() == 3
            assert "mkl_get_max_threads() : 1\n" not in torch.__config__.parallel_info()
            with single_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 3
            go.set()
            assert other.result(60) == 1
    finally:
        torch.set_num_threads(before)
