"""Decoding in worker processes: the same bits, and nothing that a medium does reaches the parent."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.media import make_video, numbered_frames, truncate
from tests.unit.media.test_media_store import clip, image, store
from vlmrl.errors import MediaError, VlmrlError
from vlmrl.media.decode import DecodedMedium, decode_views
from vlmrl.media.sizing import Sizing
from vlmrl.media.workers import WorkerPool

SIZING = Sizing(
    min_pixels=28 * 28,
    max_pixels=112 * 112,
    video_total_pixels=None,
    fps=2.0,
    min_frames=2,
    max_frames=16,
    decoder="auto",
    patch_size=14,
    merge_size=2,
    temporal_patch_size=2,
)
STUB = """
import ctypes, os, signal, sys, time
import numpy as np
import vlmrl.media.workers as workers

def decode(data, kind, sizings):
    word = data[:20].decode("ascii", "replace").strip()
    if word == "hang":
        time.sleep(3600)
    if word == "hang in C":
        ctypes.PyDLL(None).pause()  # keeps the interpreter lock
    if word == "abort":
        os.abort()
    if word == "exit":
        os._exit(7)
    if word == "segfault":
        ctypes.string_at(0)
    if word == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if word == "nonsense":
        os.write(0, b"nonsense" * 100)
        time.sleep(3600)
    if word == "bug":
        raise ZeroDivisionError("a bug of ours")
    if word == "print":
        print("noise" * 100000, flush=True)
    if word == "devour":
        held = []
        while True:
            held.append(bytearray(2**24))
    return [workers.DecodedMedium(frames=np.frombuffer(data[:12], dtype=np.uint8).reshape(1, 2, 2, 3), size=(2, 2)) for _ in sizings]

workers.decode_views = decode
workers._warm = lambda sizing: None
workers.main(int(sys.argv[1]))
"""
"""A worker whose decoder does as it is told, and is ready quickly because it loads none."""
FINE = b"twelve bytes"
ANSWER = DecodedMedium(frames=np.frombuffer(FINE, dtype=np.uint8).reshape(1, 2, 2, 3), size=(2, 2))


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(60 * 90 * 3, dtype=np.uint32).reshape(60, 90, 3).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stub") / "stub.py"
    path.write_text(STUB)
    return path


@pytest.fixture(scope="module")
def honest() -> Iterator[WorkerPool]:
    pool = WorkerPool(SIZING, count=1, deadline=60)
    yield pool
    pool.close()


@pytest.fixture
def pool(stub: Path) -> Iterator[Callable[..., WorkerPool]]:
    made: list[WorkerPool] = []

    def make(**changes: float) -> WorkerPool:
        made.append(WorkerPool(SIZING, **({"count": 1, "deadline": 60, "command": [str(stub)]} | changes)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def gone(pid: int) -> bool:
    """Whether a process is neither running nor a zombie; waits a while for it."""
    for _ in range(400):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def same(a: DecodedMedium, b: DecodedMedium) -> bool:
    times = a.times is b.times is None or (a.times is not None and b.times is not None and a.times.tobytes() == b.times.tobytes())
    return times and a.frames.tobytes() == b.frames.tobytes() and (a.frames.shape, a.size, a.duration, a.spacing) == (
        b.frames.shape, b.size, b.duration, b.spacing,
    )  # fmt: skip


def test_a_worker_gives_the_same_bits(honest: WorkerPool, tmp_path: Path) -> None:
    irregular = [0, 0.1, 0.2, 0.3, 3, 3.1, 9, 9.1]
    clips = [
        make_video(tmp_path / f"a{suffix}", numbered_frames(40, 60, 90), fps=24000 / 1001) for suffix in (".mp4", ".mkv", ".ts", ".avi")
    ]
    clips.append(make_video(tmp_path / "v.mp4", numbered_frames(8), times=irregular, rotation=90))
    for path in clips:
        data = path.read_bytes()
        assert same(honest.decode(data, "video"), decode_views(data, "video", [SIZING])[0]), path.name
    assert same(honest.decode(picture(), "image"), decode_views(picture(), "image", [SIZING])[0])
    assert honest.stats.started == 1
    assert honest.stats.peak >= honest.stats.base > 0


def test_a_worker_gives_the_same_errors(honest: WorkerPool, tmp_path: Path) -> None:
    cut = truncate(make_video(tmp_path / "a.mp4", numbered_frames(40), fps=10), 0.5).read_bytes()
    before = honest.pids()
    for data, kind in ((b"", "image"), (b"<html>", "image"), (picture()[:100], "image"), (cut, "video"), (picture(), "video")):
        with pytest.raises(MediaError) as here:
            decode_views(data, kind, [SIZING])[0]  # type: ignore[arg-type]
        with pytest.raises(MediaError) as there:
            honest.decode(data, kind)  # type: ignore[arg-type]
        assert (there.value.reason, str(there.value)) == (here.value.reason, str(here.value))
    assert honest.pids() == before, "a damaged file costs no process"


@pytest.mark.parametrize("how", ["hang", "hang in C", "stop"])
def test_a_deadline_kills_and_the_next_medium_is_decoded(pool: Callable[..., WorkerPool], how: str) -> None:
    one = pool(deadline=60)
    one.decode(FINE, "image")
    old = one.pids()
    one.deadline = 0.5
    with pytest.raises(MediaError, match=r"not decoded within 0\.5 s.*media\.deadline") as caught:
        one.decode(how.encode(), "image")
    assert caught.value.reason == "timeout"
    assert gone(old[0])
    one.deadline = 60
    assert same(one.decode(FINE, "image"), ANSWER)
    assert (one.stats.started, one.stats.timeouts, one.stats.crashes) == (2, 1, 0)


@pytest.mark.parametrize(
    ("how", "said"), [("abort", "Aborted"), ("segfault", "Segmentation"), ("exit", "exit code 7"), ("nonsense", "nonsense")]
)
def test_a_crash_is_a_reason_and_the_next_medium_is_decoded(pool: Callable[..., WorkerPool], how: str, said: str) -> None:
    one = pool()
    with pytest.raises(MediaError, match=said) as caught:
        one.decode(how.encode(), "video")
    assert caught.value.reason == "crashed"
    assert str(caught.value).endswith("; so did the one that tried it before")
    assert one.pids() == []
    assert same(one.decode(FINE, "image"), ANSWER)
    assert (one.stats.started, one.stats.crashes) == (3, 2)


KILLED_ONCE = """
import os, signal, sys
from pathlib import Path
import vlmrl.media.workers as workers

flag, real = Path({flag!r}), workers.decode_views

def killed():
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def decode(data, kind, sizings):
    shown = real(data, kind, sizings)
    if {when!r} == "decoding":
        killed()
    return shown

workers.decode_views = decode
if {when!r} == "starting":
    killed()
workers.main(int(sys.argv[1]))
"""
"""A real worker that is killed once, as the kernel kills when memory is short."""


@pytest.mark.parametrize(("when", "crashes"), [("decoding", 1), ("starting", 0)])
def test_a_worker_that_is_killed_once_costs_no_medium(tmp_path: Path, when: str, crashes: int) -> None:
    script = tmp_path / "worker.py"
    script.write_text(KILLED_ONCE.format(flag=str(tmp_path / "flag"), when=when))
    data = make_video(tmp_path / "v.mp4", numbered_frames(8), times=[0, 0.1, 0.2, 0.3, 3, 3.1, 9, 9.1]).read_bytes()
    one = WorkerPool(SIZING, count=1, deadline=60, command=[str(script)])
    assert same(one.decode(data, "video"), decode_views(data, "video", [SIZING])[0])
    assert (tmp_path / "flag").exists()
    assert (one.stats.started, one.stats.crashes, len(one.pids())) == (2, crashes, 1)
    one.close()


def test_workers_that_are_always_killed_at_their_start_are_given_up(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    one = WorkerPool(SIZING, count=1, deadline=60, command=[str(script)])
    with pytest.raises(VlmrlError, match=r"was ended by signal 9 .* before its first medium"):
        one.decode(FINE, "image")
    assert (one.stats.started, one.pids()) == (3, [])


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is enforced by Linux")
def test_memory_is_capped(pool: Callable[..., WorkerPool]) -> None:
    one = pool(memory=2**28)
    with pytest.raises(MediaError) as caught:
        one.decode(b"devour", "image")
    assert caught.value.reason == "memory"
    assert 0 < one.stats.peak <= one.stats.base + 2**28 + 2**24
    assert same(one.decode(FINE, "image"), ANSWER)


def test_our_own_bugs_are_no_fault_of_the_medium(pool: Callable[..., WorkerPool]) -> None:
    one = pool()
    with pytest.raises(VlmrlError, match="ZeroDivisionError: a bug of ours") as caught:
        one.decode(b"bug", "image")
    assert not isinstance(caught.value, MediaError)


def test_what_a_decoder_prints_disturbs_nothing(pool: Callable[..., WorkerPool]) -> None:
    assert same(
        pool().decode(b"print" + b" " * 20, "image"),
        DecodedMedium(frames=np.frombuffer(b"print" + b" " * 7, dtype=np.uint8).reshape(1, 2, 2, 3), size=(2, 2)),
    )


def test_a_worker_that_was_ended_while_idle_is_replaced(pool: Callable[..., WorkerPool]) -> None:
    one = pool()
    one.decode(FINE, "image")
    os.kill(one.pids()[0], signal.SIGKILL)
    os.waitid(os.P_PID, one.pids()[0], os.WEXITED | os.WNOWAIT)
    one.decode(FINE, "image")
    assert (one.stats.started, one.stats.crashes) == (2, 0)


def test_signals_for_the_run_do_not_end_workers(pool: Callable[..., WorkerPool]) -> None:
    one = pool()
    one.decode(FINE, "image")
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(one.pids()[0], number)
    one.decode(FINE, "image")
    assert one.stats.started == 1


def test_many_threads_share_few_workers(pool: Callable[..., WorkerPool]) -> None:
    two = pool(count=2)
    expected = ANSWER
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda n: _reason(two) if n == 5 else two.decode(FINE, "image"), range(24)))
    assert found.pop(5) == "crashed"
    assert all(same(shown, expected) for shown in found)  # type: ignore[arg-type]
    assert len(two.pids()) <= 2


def _reason(pool: WorkerPool) -> str:
    with pytest.raises(MediaError) as caught:
        pool.decode(b"abort", "image")
    return caught.value.reason


def test_closing_leaves_no_process(pool: Callable[..., WorkerPool]) -> None:
    one = pool()
    one.decode(FINE, "image")
    pid = one.pids()[0]
    one.close()
    one.close()
    assert gone(pid)
    assert one.pids() == []
    with pytest.raises(VlmrlError, match="closed"):
        one.decode(FINE, "image")


def test_a_dropped_pool_leaves_no_process(stub: Path) -> None:
    one = WorkerPool(SIZING, count=1, deadline=60, command=[str(stub)])
    one.decode(FINE, "image")
    pid = one.pids()[0]
    del one
    gc.collect()
    assert gone(pid)


def test_workers_die_with_a_killed_parent(stub: Path, tmp_path: Path) -> None:
    """Also one that is busy in C and holds the interpreter lock."""
    program = f"""
import threading
from vlmrl.media.workers import WorkerPool
from tests.unit.media.test_media_workers import FINE, SIZING
pool = WorkerPool(SIZING, count=2, deadline=600, command=[{str(stub)!r}])
pool.decode(FINE, "image")
threading.Thread(target=lambda: pool.decode(b"hang in C", "image"), daemon=True).start()
while pool._idle:
    pass
pool.decode(FINE, "image")
print(*pool.pids(), flush=True)
threading.Event().wait()
"""
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(root)}
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait(60)
    parent.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_a_worker_that_cannot_start_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)\n")
    one = WorkerPool(SIZING, count=1, deadline=1, command=[str(broken)])
    with pytest.raises(VlmrlError, match="ended with exit code 3 before its first medium"):
        one.decode(FINE, "image")
    assert (one.stats.started, one.pids()) == (1, []), "what ends by itself would end again"


@pytest.mark.parametrize(("count", "deadline"), [(0, 1.0), (1, 0.0)])
def test_senseless_settings_are_refused(count: int, deadline: float) -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        WorkerPool(SIZING, count=count, deadline=deadline)


def test_a_store_with_workers_equals_one_without(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    make_video(tmp_path / "a.mp4", numbered_frames(40, 56, 84), fps=10)
    (tmp_path / "cut.png").write_bytes(picture()[:200])
    plain, working = store(), store(workers=1, deadline=60.0)
    for ref in (image(), clip()):
        a, b = plain.get(ref, tmp_path), working.get(ref, tmp_path)
        assert a.handle == b.handle
        assert a.pixel_values.tobytes() == b.pixel_values.tobytes()
        assert a.frames.tobytes() == b.frames.tobytes()
        assert (a.original_size, a.duration) == (b.original_size, b.duration)
        assert not b.frames.flags.writeable
    with pytest.raises(MediaError) as here:
        plain.get(image("cut.png"), tmp_path)
    with pytest.raises(MediaError) as there:
        working.get(image("cut.png"), tmp_path)
    assert str(there.value) == str(here.value)
    assert working.pool is not None
    pid = working.pool.pids()[0]
    working.close()
    plain.close()
    assert gone(pid)
