"""Decoder worker processes: a medium that hangs, crashes or devours memory costs that process and nothing else.

A worker is a fresh Python process that gets bytes and returns frames, over a socket pair, as JSON headers and raw bytes; nothing is
pickled and no path is opened there. It may write this much memory and no more (`RLIMIT_DATA`, Linux), has a wall-clock deadline for
each medium, is killed and replaced when it misses it or dies, and is ended by the kernel when its parent goes, however that goes.

A worker that dies says nothing of its medium: the kernel kills whatever is large when memory is short, and people kill processes. So the
medium is tried once more in another worker, and only what ends two workers is to blame for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.errors import MediaError, VlmrlError
from vlmrl.media.decode import DecodedMedium, Stored, decode_views
from vlmrl.media.sizing import Sizing

MEMORY = 4 * 2**30
"""Bytes that a worker may hold beyond what it holds when it is ready: a picture of the largest accepted size needs about 1.5 GB."""
START_SECONDS = 180.0
"""A worker imports the decoders and torch before it is ready; a busy machine with a cold disk takes its time."""
_STARTS = 3
"""Workers that are started, one after another, if a signal ends them before they are ready."""
_END_SECONDS = 5.0
_JSON_BYTES = 1 << 22
_FRAMES_BYTES = 1 << 34
_HEAD = struct.Struct(">IQ")


@dataclass
class WorkerStats:
    """What a pool has done. Kept by the parent."""

    started: int = 0
    timeouts: int = 0
    crashes: int = 0
    """Workers that died over a medium; it may have been decoded by the next one."""
    base: int = 0
    """Resident memory of a worker before its first medium, in bytes; the largest of all. Zero where the system does not tell."""
    peak: int = 0
    """Largest resident memory that any worker reported after a medium, in bytes."""


class WorkerPool:
    """Up to `count` processes, started when they are first needed. Safe for several threads; close it, or drop it.

    `deadline` is in seconds of wall time for one medium, from the sending of its bytes to the last byte of its frames. `memory` is in
    bytes beyond what an idle worker has. `command` starts a worker, given the number of its life line (tests replace it).
    """

    def __init__(
        self, sizing: Sizing, *, count: int, deadline: float, memory: int = MEMORY, command: Sequence[str] = ("-m", "vlmrl.media.workers")
    ):
        if count < 1 or deadline <= 0:
            raise ValueError(f"a pool has at least one worker and a positive deadline, got {count} and {deadline}")
        self.sizing = sizing
        self.count = count
        self.deadline = deadline
        self.memory = memory
        self.stats = WorkerStats()
        self._command = list(command)
        self._guard = threading.Lock()
        self._free = threading.Semaphore(count)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._closed = False
        self._end = weakref.finalize(self, _end_all, self._all)

    def decode(self, data: bytes, kind: Stored) -> DecodedMedium:
        """Decode in a worker, raises as `views`."""
        return self.views(data, kind)[0]

    def views(self, data: bytes, kind: Stored, also: Sequence[Sizing] = ()) -> list[DecodedMedium]:
        """Decode in a worker, bit for bit as `decode_views` does. Waits for a free one; a second one tries if the first one dies.

        Returns:
            The pool's own view, and those of `also`.

        Raises:
            MediaError: as `decode_views`, or `timeout`, `crashed` (two workers died over it), `memory`.
            VlmrlError: no worker can be started, or it met an error that is no fault of the medium.
        """
        asked = {"kind": kind, "also": [asdict(sizing) for sizing in also]}
        with self._free:
            try:
                return self._try(data, asked)
            except MediaError as error:
                if error.reason != "crashed":
                    raise
            try:
                return self._try(data, asked)
            except MediaError as error:
                if error.reason != "crashed":
                    raise
                raise MediaError("crashed", f"{str(error).removeprefix('crashed: ')}; so did the one that tried it before") from error

    def _try(self, data: bytes, asked: dict[str, Any]) -> list[DecodedMedium]:
        worker = self._take()
        healthy = False
        try:
            shown = self._ask(worker, data, asked)
            healthy = True
            return shown
        except MediaError as error:
            # after these three the process is killed, dead, or out of memory, and is replaced; a fault of the medium leaves it as it was
            healthy = error.reason not in ("timeout", "crashed", "memory")
            raise
        finally:
            self._give(worker, healthy)

    def close(self) -> None:
        """End all workers and wait for them; a second call does nothing."""
        with self._guard:
            self._closed = True
            self._idle.clear()
        self._end()

    def pids(self) -> list[int]:
        """List the process ids of the workers that are alive."""
        with self._guard:
            return sorted(worker.process.pid for worker in self._all)

    def _take(self) -> _Worker:
        with self._guard:
            if self._closed:
                raise VlmrlError("the media workers are closed; open a new store")
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._all.discard(worker)  # it was ended from outside while it had nothing to do
                worker.end()
        for _ in range(_STARTS - 1):
            with contextlib.suppress(_KilledAtStart):
                return self._start()
        return self._start()

    def _start(self) -> _Worker:
        worker = _Worker(self._command)
        with self._guard:
            self._all.add(worker)
            self.stats.started += 1
        try:
            base = worker.greet(self.sizing, self.memory)
            with self._guard:
                self.stats.base = max(self.stats.base, base)
        except BaseException:
            self._give(worker, healthy=False)
            raise
        return worker

    def _give(self, worker: _Worker, healthy: bool) -> None:
        with self._guard:
            keep = healthy and not self._closed
            if keep:
                self._idle.append(worker)
            else:
                self._all.discard(worker)
        if not keep:
            worker.end()

    def _ask(self, worker: _Worker, data: bytes, asked: dict[str, Any]) -> list[DecodedMedium]:
        kind = asked["kind"]
        try:
            answer, parts = worker.ask(asked, data, self.deadline)
        except TimeoutError as error:
            worker.process.kill()
            with self._guard:
                self.stats.timeouts += 1
            text = f"{kind}: not decoded within {self.deadline:g} s; cut or shrink it ahead of time, or raise media.deadline"
            raise MediaError("timeout", text) from error
        except _BrokenReply as error:
            worker.process.kill()
            with self._guard:
                self.stats.crashes += 1
            raise MediaError("crashed", f"{kind}: the process that decoded it answered nonsense: {error}") from error
        except OSError as error:
            # the line broke: the exit code says whether a signal ended it
            how = worker.verdict()
            with self._guard:
                self.stats.crashes += 1
            raise MediaError("crashed", f"{kind}: the process that decoded it {how or f'broke off: {error}'}") from error
        with self._guard:
            self.stats.peak = max(self.stats.peak, int(answer.get("peak", 0)))
        if "reason" in answer:
            raise MediaError(str(answer["reason"]), str(answer["message"]))
        if "error" in answer:
            raise VlmrlError(f"a media worker failed, which is no fault of the medium: {answer['error']}")
        return [_put_together(frames, facts) for frames, facts in zip(parts, answer["views"], strict=True)]


class _KilledAtStart(VlmrlError):
    """A signal ended a worker before it was ready."""


class _BrokenReply(Exception):
    """A worker answered something that no healthy worker answers."""


class _Worker:
    """One process and the two lines to it. Used by one thread at a time."""

    def __init__(self, command: list[str]):
        self.line, theirs = socket.socketpair()
        life, self.life = os.pipe()
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        # one thread per process, there are several of them; no worker takes a CUDA context
        env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        try:
            self.process = subprocess.Popen(
                [sys.executable, *command, str(life)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=env,
                pass_fds=(life,),
                start_new_session=True,
            )
        except BaseException:
            self.line.close()
            os.close(self.life)
            raise
        finally:
            theirs.close()
            os.close(life)

    def greet(self, sizing: Sizing, memory: int) -> int:
        """Give it its rules, and wait until it is ready. Its resident memory in bytes.

        Raises:
            VlmrlError: it does not start.
        """
        try:
            _send(self.line, {"sizing": asdict(sizing), "memory": memory}, b"", time.monotonic() + START_SECONDS)
            answer, _ = _receive(self.line, time.monotonic() + START_SECONDS)
            return int(answer["base"])
        except (OSError, _BrokenReply) as error:
            ended = self.verdict()
            how = ended or f"was not ready within {START_SECONDS:g} s: {error}"
            text = f"a media worker {how} before its first medium; its own message is above. media.workers: 0 decodes here"
            # a signal is the machine's doing (memory was short), and another start may do; an exit code is a fault that starts do not mend
            killed = ended is not None and self.process.returncode < 0
            raise (_KilledAtStart if killed else VlmrlError)(text) from error

    def ask(self, header: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Send one medium, and wait for what comes back.

        Returns:
            (answer, frames uint8 [T, h, w, 3] of each view, none where the answer is an error).
        """
        until = time.monotonic() + seconds
        _send(self.line, header, data, until)
        answer, body = _receive(self.line, until)
        if "reason" in answer or "error" in answer:
            return answer, []
        shapes = [view.get("shape") for view in answer.get("views", [])]
        sizes = [int(np.prod(shape)) if isinstance(shape, list) and len(shape) == 4 and shape[3] == 3 else 0 for shape in shapes]
        if len(shapes) != 1 + len(header.get("also", ())) or 0 in sizes or sum(sizes) != len(body):
            raise _BrokenReply(f"{len(body)} bytes for frames of shapes {shapes}")
        flat, ends = np.frombuffer(body, dtype=np.uint8), np.cumsum(sizes)
        return answer, [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]

    def verdict(self) -> str | None:
        """Say how the process ended, in words; it is killed if it has not."""
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was ended by signal {-code} ({signal.strsignal(-code)})"

    def end(self) -> None:
        """Close the lines, upon which it ends; kill it if it does not, and wait."""
        if self.life < 0:
            return
        self.line.close()
        os.close(self.life)  # the kernel ends it here, whatever it is doing
        self.life = -1
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _end_all(workers: set[_Worker]) -> None:
    while workers:
        workers.pop().end()


# Both ends


def _facts(shown: DecodedMedium) -> dict[str, Any]:
    """All of a medium but its frames, and the shape of these, as JSON values."""
    times = None if shown.times is None else shown.times.tolist()
    return {"shape": shown.frames.shape, "size": shown.size, "times": times, "duration": shown.duration, "spacing": shown.spacing}


def _put_together(frames: np.ndarray, facts: dict[str, Any]) -> DecodedMedium:
    times, (height, width) = facts["times"], facts["size"]
    stamps = None if times is None else np.array(times, dtype=np.float64)
    return DecodedMedium(frames=frames, size=(height, width), times=stamps, duration=facts["duration"], spacing=facts["spacing"])


def _send(line: socket.socket, header: dict[str, Any], data: bytes | memoryview, until: float | None) -> None:
    text = json.dumps(header).encode()
    for piece in (_HEAD.pack(len(text), len(data)) + text, data):
        if until is not None:
            line.settimeout(max(until - time.monotonic(), 1e-3))
        line.sendall(piece)


def _receive(line: socket.socket, until: float | None) -> tuple[dict[str, Any], bytearray]:
    """(header, data). Raises TimeoutError, OSError or _BrokenReply."""
    text, data = _HEAD.unpack(_exactly(line, _HEAD.size, until))
    if text > _JSON_BYTES or data > _FRAMES_BYTES:
        raise _BrokenReply(f"announces {text} and {data} bytes")
    try:
        header = json.loads(bytes(_exactly(line, text, until)))
    except ValueError as error:
        raise _BrokenReply("a header that is not JSON") from error
    if not isinstance(header, dict):
        raise _BrokenReply("a header that is not an object")
    return header, _exactly(line, data, until)


def _exactly(line: socket.socket, count: int, until: float | None) -> bytearray:
    out = bytearray(count)
    view = memoryview(out)
    while view:
        if until is not None:
            line.settimeout(max(until - time.monotonic(), 1e-3))
        got = line.recv_into(view)
        if not got:
            raise ConnectionResetError("the line was closed")
        view = view[got:]
    return out


# The worker's end


def main(life: int) -> None:
    """Serve until the line closes. The socket is standard input."""
    # Asynchronous notice of the life line's end: the default of SIGIO is to end the process, also within a C loop.
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the parent, which finishes its step and then closes the line
    # a crash of a decoder would write the whole memory to disk
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line = socket.socket(fileno=os.dup(0))
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # the parent closed the pool, or is gone
        rules, _ = _receive(line, None)
        sizing = Sizing(**rules["sizing"])
        _warm(sizing)
        # after the libraries are loaded, which take more than many a medium
        _limit(int(rules["memory"]))
        _send(line, {"base": _memory("VmHWM")}, b"", None)
        while True:
            request, data = _receive(line, None)
            header, body = _serve(bytes(data), request["kind"], [sizing, *(Sizing(**one) for one in request["also"])])
            del data
            _send(line, header | {"peak": _memory("VmHWM")}, body, None)


def _serve(data: bytes, kind: Stored, sizings: Sequence[Sizing]) -> tuple[dict[str, Any], bytes | memoryview]:
    """(answer, frames of all views)."""
    try:
        shown = decode_views(data, kind, sizings)
    except MediaError as error:
        return {"reason": error.reason, "message": str(error).removeprefix(f"{error.reason}: ")}, b""
    except MemoryError:
        return _too_hungry(kind), b""
    except Exception as error:  # noqa: BLE001 - the media border: the parent raises it as what it is, a fault of ours
        if isinstance(error, RuntimeError) and "allocate memory" in str(error):  # torch's way of saying it
            return _too_hungry(kind), b""
        return {"error": traceback.format_exc()[-2000:]}, b""
    parts = [np.ascontiguousarray(one.frames).data.cast("B") for one in shown]
    return {"views": [_facts(one) for one in shown]}, parts[0] if len(parts) == 1 else b"".join(parts)


def _too_hungry(kind: Stored) -> dict[str, Any]:
    return {"reason": "memory", "message": f"{kind}: decoding it takes more memory than a worker may have; shrink it ahead of time"}


def _warm(sizing: Sizing) -> None:
    """Load all that decoding loads, so that the limit is about media alone."""
    import av.logging
    import torch

    from vlmrl.media import frames, video  # noqa: F401 (what `decode.DECODERS` names)
    from vlmrl.media.resize import resize
    from vlmrl.media.sampling import resolve_decoder

    torch.set_num_threads(1)
    av.logging.set_level(None)
    if resolve_decoder(sizing.decoder) == "decord":
        import decord

        decord.logging.set_level(decord.logging.QUIET)
    resize(np.zeros((1, 8, 8, 3), dtype=np.uint8), 16, 16)


def _limit(memory: int) -> None:
    """Writable memory that this process may still take. Linux counts it; elsewhere there is no such limit."""
    # RLIMIT_DATA counts what VmData shows: private writable memory, not mapped files
    now = _memory("VmData")
    if now:
        resource.setrlimit(resource.RLIMIT_DATA, (now + memory, now + memory))


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes; 0 where there is none."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
