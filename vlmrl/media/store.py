"""The media store: media are decoded, resized and cut into patches once per content, and cached. The only place where that happens.

An entry is addressed by the hash of the file's content and of every parameter of its processing, and is shared by rollout,
training, rewards and evaluation. Entries are dropped least recently used first when the byte budget is full, and are made
again from the same file, checked against the same hash, when they are asked for by key.

Several threads may ask at once. A lock guards the tables only; files are read and decoded outside it, and one thread at a time
works on a file (and on a content), so that whoever comes second waits and finds the entry instead of making it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.media.access import open_media
from vlmrl.media.decode import DecodedMedium, Stored, decode_views
from vlmrl.media.keyed_lock import KeyedLock
from vlmrl.media.places import Place, byte_limit, check_hash, content_of, named, seen_place, stored_as
from vlmrl.media.resize import single_thread
from vlmrl.media.sampling import Decoder, resolve_decoder
from vlmrl.media.sizing import Grid, Sizing
from vlmrl.registry import load
from vlmrl.types import MediaHandle, MediaKind, MediaRef

if TYPE_CHECKING:
    from vlmrl.media.argued import Argue, MediaProcessor, PlannedTokens, ProcessedMedium
    from vlmrl.media.workers import WorkerPool

Patchify = Callable[[np.ndarray, MediaKind], tuple[np.ndarray, Grid]]
"""Frames uint8 [T, h, w, 3] -> (patches uint8 or float32 [t * h * w, dim], grid (t, h, w) in patches). Must not resize."""

Timing = tuple[float | None, np.ndarray | None, float | None]
"""Seconds between two frames asked for, times of the frames, seconds of the whole; as the last fields of `headers.Planned`."""

S = TypeVar("S", bound="MediaStore")
_PIXELS = ("min_pixels", "max_pixels", "video_total_pixels", "fps", "min_frames", "max_frames")
"""The settings that change what the model sees; `decoder` enters the keys as what it means on this machine."""
_VERSION = 2
"""Part of every key; raise it when decoding or resizing changes."""


@dataclass(frozen=True, kw_only=True)
class MediaSettings:
    """How media are sampled and sized; the fields of `config.schema.MediaSection`."""

    min_pixels: int
    max_pixels: int
    video_total_pixels: int | None
    fps: float
    min_frames: int
    max_frames: int
    cache_bytes: int
    decoder: Decoder
    workers: int = 0
    """Processes that decode; 0 decodes in this one, without a deadline."""
    deadline: float = 20.0
    """Seconds of wall time that a worker may take for one medium."""


@dataclass(frozen=True, kw_only=True)
class ProcessedMedia:
    """One medium as the model sees it. The arrays are shared: `frames` and `times` are read-only, and nobody writes to `pixel_values`."""

    handle: MediaHandle
    frames: np.ndarray
    """uint8 [T, h, w, 3]: exactly the pixels that `pixel_values` were made of. T is 1 for images."""
    times: np.ndarray | None
    """Videos: float64 [T], when each frame comes on screen, in seconds from the first frame of the file."""
    pixel_values: np.ndarray
    """Patches [n, dim]: uint8, which the tower's pass takes to what it sees, or float32 as the processor made them."""
    original_size: tuple[int, int]
    """(H, W) of the file's upright picture."""
    duration: float | None
    """Videos: seconds."""
    argued: ProcessedMedium | None = None
    """What the family's own processor makes of `frames`, in place of patches."""

    @property
    def nbytes(self) -> int:
        """Count the bytes that this entry takes in the cache."""
        return self.frames.nbytes + self.pixel_values.nbytes + (0 if self.argued is None else self.argued.nbytes)


class MediaStore:
    """Processed media by content, within a byte budget. One per process; safe for several threads.

    With `settings.workers` media are decoded in worker processes (`media.workers`), which start when they are first needed and end
    with `close` or with the store; what they give is what decoding here gives.

    `fingerprint` names the processor behind `patchify` (its normalisation is part of what the model sees). With `step_times` the
    handles of videos say when each temporal step is on screen, for models that read it as text. `stats` counts files
    `opened`, media `decoded`, `cache_hits`, entries `evicted`, and `decode_seconds` of all threads together; its values are those of
    some order in which the calls could have come one after another.
    """

    def __init__(
        self,
        settings: MediaSettings,
        *,
        patchify: Patchify,
        patch_size: int,
        merge_size: int,
        temporal_patch_size: int,
        fingerprint: str = "",
        step_times: bool = False,
        argue: Argue | None = None,
        patch_dtype: type[np.generic] = np.float32,
    ):
        self.settings = settings
        self.argue = argue
        self.fingerprint = fingerprint
        self._planned: PlannedTokens | None = None if argue is None else load("vlmrl.media.argued:PlannedTokens")(argue)
        self.patchify = patchify
        self.patch_size = patch_size
        self.merge_size = merge_size
        self.temporal_patch_size = temporal_patch_size
        self.step_times = step_times
        self.patch_dtype = np.dtype(patch_dtype)
        self.factor = patch_size * merge_size
        """Sides of processed frames are multiples of this."""
        self.stats: dict[str, int | float] = {"opened": 0, "decoded": 0, "cache_hits": 0, "evicted": 0, "decode_seconds": 0.0}
        self.cached_bytes = 0
        rules: dict[str, Any] = {name: getattr(settings, name) for name in _PIXELS}
        rules |= {"patch_size": patch_size, "merge_size": merge_size, "temporal_patch_size": temporal_patch_size}
        self.sizing = Sizing(**rules, decoder=settings.decoder)
        parameters = {**rules, "version": _VERSION, "decoder": resolve_decoder(settings.decoder), "processor": fingerprint}
        self.pool: WorkerPool | None = None
        """The worker processes; none where this process decodes."""
        if settings.workers:
            self.pool = load("vlmrl.media.workers:WorkerPool")(self.sizing, count=settings.workers, deadline=settings.deadline)
        self._parameters = json.dumps(parameters, sort_keys=True)
        self._entries: OrderedDict[str, ProcessedMedia] = OrderedDict()
        self._origins: dict[str, tuple[MediaRef, Path]] = {}
        self._hashes: dict[Place, str] = {}
        self._lock = threading.Lock()
        """Guards the four tables above, `stats` and `cached_bytes`; never held while a file is read or decoded."""
        self._key_locks = KeyedLock()
        self._here = threading.local()

    @classmethod
    def of(cls: type[S], settings: MediaSettings, processor: MediaProcessor) -> S:
        """Make a store of media as a model's own processor cuts them."""
        return cls(
            settings,
            patchify=processor.patchify,
            patch_size=processor.patch_size,
            merge_size=processor.merge_size,
            temporal_patch_size=processor.temporal_patch_size,
            fingerprint=processor.fingerprint,
            step_times=processor.step_times,
            argue=processor.argue,
            patch_dtype=processor.patch_dtype,
        )

    def get(self, ref: MediaRef, root: Path, also: MediaStore | None = None) -> ProcessedMedia:
        """Read the processed medium, from the cache where its content is there. What is decoded is so for the store `also` too.

        Raises:
            MediaError: not allowed, not there, damaged, too large, or `hash_mismatch` with `ref.sha256`; names the path.
        """
        seen = seen_place(ref, root)
        entry = None if seen is None else self._known(ref, seen)
        if entry is not None:
            return entry
        with self._turn((ref.kind, seen)):
            entry = None if seen is None else self._known(ref, seen)  # another thread may have been faster
            return self._make(ref, root, also) if entry is None else entry

    def _make(self, ref: MediaRef, root: Path, also: MediaStore | None) -> ProcessedMedia:
        """Read the file, and decode it unless its content is in the cache under another name."""
        data, digest, place = content_of(ref, root)
        with self._lock:
            self.stats["opened"] += 1
            # true of the file, whatever this row expects
            self._hashes[place] = digest
        check_hash(ref, digest)
        key = self.key_of(ref, digest)
        # the same content under two paths is decoded once
        with self._turn(key):
            entry = self._find(key)
            if entry is None:
                both = None if also is None else load("vlmrl.media.both:Both")(self, also, root, digest, place)
                self._keep(key, entry := self._process(ref, data, key, both or self._decode))
        with self._lock:
            self._origins[key] = (ref, root)
        return entry

    def put(self, frames: np.ndarray, kind: MediaKind, *, times: np.ndarray | None = None, spacing: float | None = None) -> ProcessedMedia:
        """Store a medium whose frames are already as the model is to see them: uint8 [T, h, w, 3], neither chosen nor resized here.

        Args:
            times: of a video, float64 [T] seconds from the first frame.
            spacing: of a video, seconds between two frames asked for.

        Raises:
            MediaError: `shape`: the sides are no multiples of `factor`, a video's frames are not whole temporal patches, or an image is
                not one frame. `too_large`: it does not fit the cache, from which it could not be made again.
        """
        count, height, width = frames.shape[:3]
        whole = 1 if kind == "image" else self.temporal_patch_size
        if height % self.factor or width % self.factor or (count != 1 if kind == "image" else count % whole or not count):
            raise MediaError(
                "shape",
                f"{count} frames of {width} x {height}: frames that are taken as they are have sides in multiples of {self.factor} pixels, "
                f"an image is one, and a video has a multiple of {whole}",
            )
        size = (height, width)
        # everything that reaches the handle is hashed, so that two media of one key cannot differ
        digest = hashlib.sha256(frames.tobytes())
        for part in (str(frames.shape), repr(None if times is None else times.tolist()), repr(spacing)):
            digest.update(part.encode())
        key = self._key("frames" if kind == "video" else "image", f"put {digest.hexdigest()}")
        if (found := self._find(key)) is not None:
            return found
        duration = None if times is None or spacing is None else float(times[-1]) + spacing
        shown = DecodedMedium(frames=frames, size=size, times=times, duration=duration, spacing=spacing)
        entry = self._cut(kind, shown, key, "frames that were sent")
        # `_keep` would only let such an entry go, since a file can be read again; here there is no file
        if entry.nbytes > self.settings.cache_bytes:
            raise MediaError("too_large", f"{entry.nbytes} bytes when processed, and media.cache_bytes is {self.settings.cache_bytes}")
        self._keep(key, entry)
        return entry

    def close(self) -> None:
        """End the worker processes. Without any, and for a second time, it does nothing."""
        if self.pool is not None:
            self.pool.close()

    def peek(self, key: str) -> ProcessedMedia:
        """Look up an entry as `get_key` does; what is in memory is neither counted as used nor kept longer for it."""
        with self._lock:
            entry = self._entries.get(key)
        return self.get_key(key) if entry is None else entry

    def get_key(self, key: str) -> ProcessedMedia:
        """Look up the processed medium of a handle that this store has made.

        Raises:
            KeyError: this store never made it.
            MediaError: it was evicted and its file is gone, damaged, or has other content by now (`changed`).
        """
        entry = self._find(key)
        if entry is not None:
            return entry
        with self._lock:
            origin = self._origins.get(key)
        if origin is None:
            raise KeyError(f"media key {key} was not made by this store")
        ref, root = origin
        entry = self.get(ref, root)
        if entry.handle.key != key:
            raise MediaError("changed", f"{ref.path}: its content changed while it is in use; restore the file or start a new run")
        return entry

    def plan(self, ref: MediaRef, root: Path) -> MediaHandle:
        """Make the handle that `get` would give, with an empty key, from headers alone (see `media.headers`).

        Equal to that of `get` for well-formed files; damage further inside is not seen.

        Raises:
            MediaError: as `get`, as far as the header shows it.
        """
        if ref.as_frames:
            from vlmrl.media.frames import plan_frames

            with named(ref):
                planned = plan_frames(ref, root, self.views_of(ref)[ref])
            return self._handle(ref.kind, "", planned.grid, planned[2:])
        from vlmrl.media.headers import plan_medium

        with open_media(root, ref.path, max_bytes=byte_limit(ref.kind)) as file, named(ref):
            planned = plan_medium(file, ref.kind, self.views_of(ref)[ref], name=ref.path, times=self.step_times)
            return self._handle(ref.kind, "", planned.grid, planned[2:])

    def examine(self, ref: MediaRef, root: Path) -> MediaHandle:
        """Make the handle that `get` would give, or its error, of a medium that is decoded to see whether it can be; keep nothing of it."""
        if self.argue is not None:
            return self.get(ref, root).handle
        data, digest, _ = content_of(ref, root)
        check_hash(ref, digest)
        shown, key = self._decode(ref, data), self.key_of(ref, digest)
        return self._handle(ref.kind, key, self._grid(ref.kind, shown.frames), (shown.spacing, shown.times, shown.duration))

    def views_of(self, ref: MediaRef) -> Mapping[MediaRef, Sizing]:
        """Give what is kept here of a medium that another store decodes for both, itself among it, and by which rules."""
        return {ref: self.sizing}

    def digest(self, ref: MediaRef, root: Path) -> str | None:
        """Give the hash of the content that was last read of a file; None where it was not, or is another file by now."""
        place = seen_place(ref, root)
        with self._lock:
            return None if place is None else self._hashes.get(place)

    def weigh(self, ref: MediaRef, root: Path) -> int:
        """Compute the bytes that the entry of `get` takes in the cache: from the entry if it is there, else from `plan`.

        Raises:
            MediaError: as `plan`.
        """
        digest = self.digest(ref, root)
        with self._lock:
            entry = None if digest is None else self._entries.get(self.key_of(ref, digest))
        return self.weight(self.plan(ref, root)) if entry is None else entry.nbytes

    def weight(self, handle: MediaHandle) -> int:
        """Compute the bytes that the entry of a handle takes in the cache, where patches hold every pixel of a full temporal patch once."""
        steps, height, width = handle.grid_thw
        pixels = height * width * self.patch_size**2 * 3
        # an image has one frame, but its patches repeat it to fill a temporal patch
        frames = 1 if handle.kind == "image" else steps * self.temporal_patch_size
        return frames * pixels + steps * self.temporal_patch_size * pixels * self.patch_dtype.itemsize

    def waited(self) -> float:
        """Give the seconds that the calling thread spent decoding, or waiting for another thread that read or decoded the same medium."""
        return getattr(self._here, "seconds", 0.0)

    @contextmanager
    def _turn(self, name: Hashable) -> Iterator[None]:
        began = time.perf_counter()
        with self._key_locks.of(name):
            self._here.seconds = self.waited() + time.perf_counter() - began
            yield

    def _process(self, ref: MediaRef, data: bytes, key: str, decode: Callable[[MediaRef, bytes], DecodedMedium]) -> ProcessedMedia:
        started = time.perf_counter()
        shown = decode(ref, data)
        entry = self._cut(ref.kind, shown, key, ref.path)
        seconds = time.perf_counter() - started
        self._here.seconds = self.waited() + seconds
        with self._lock:
            self.stats["decoded"] += 1
            self.stats["decode_seconds"] += seconds
        return entry

    def _decode(self, ref: MediaRef, data: bytes) -> DecodedMedium:
        with named(ref), single_thread():
            return decode_views(data, stored_as(ref), [self.sizing])[0] if self.pool is None else self.pool.decode(data, stored_as(ref))

    def _grid(self, kind: MediaKind, frames: np.ndarray) -> Grid:
        count, height, width = frames.shape[:3]
        return 1 if kind == "image" else count // self.temporal_patch_size, height // self.patch_size, width // self.patch_size

    def _cut(self, kind: MediaKind, shown: DecodedMedium, key: str, name: str) -> ProcessedMedia:
        """Patches of decoded frames. `name`: of the file, for messages."""
        argued: ProcessedMedium | None = None
        with single_thread():
            if self.argue is None:
                values, grid = self.patchify(shown.frames, kind)
                self._check_patches(kind, name, shown.frames, values, grid)
            else:
                argued = self.argue(shown.frames, kind, shown.times, shown.duration)
                # of a family's own processor the grid counts frames and pixels; patches are inside its arguments
                values, grid = np.zeros((0, 0), dtype=np.float32), (len(shown.frames), *shown.frames.shape[1:3])
        for array in (shown.frames, shown.times):
            if array is not None:
                array.flags.writeable = False
        return ProcessedMedia(
            handle=self._handle(kind, key, grid, (shown.spacing, shown.times, shown.duration), argued),
            frames=shown.frames,
            times=shown.times,
            pixel_values=values,
            original_size=shown.size,
            duration=shown.duration,
            argued=argued,
        )

    def _handle(self, kind: MediaKind, key: str, grid: Grid, timing: Timing, argued: ProcessedMedium | None = None) -> MediaHandle:
        spacing, times, duration = timing
        tokens = grid[0] * grid[1] * grid[2] // self.merge_size**2
        if self._planned is not None:
            tokens = self._planned.of(kind, grid, times, duration) if argued is None else argued.tokens
        steps = None
        if times is not None and self.step_times:
            frames = times.reshape(grid[0], self.temporal_patch_size)
            # the middle of each temporal patch, as transformers' Qwen3-VL processor takes it
            steps = tuple(float(first + last) / 2 for first, last in zip(frames[:, 0], frames[:, -1], strict=True))
        return MediaHandle(
            kind=kind,
            key=key,
            grid_thw=grid,
            tokens=tokens,
            seconds_per_grid=None if spacing is None else spacing * self.temporal_patch_size,
            step_times=steps,
            duration=duration,
        )

    def _check_patches(self, kind: MediaKind, name: str, frames: np.ndarray, values: np.ndarray, grid: Grid) -> None:
        expected = self._grid(kind, frames)
        if grid != expected or values.ndim != 2 or len(values) != math.prod(expected) or values.dtype != self.patch_dtype:
            raise ValueError(
                f"{name}: the processor made {values.dtype} {list(values.shape)} with grid {grid} of frames {list(frames.shape)}; "
                f"expected {self.patch_dtype} with grid {expected}. Its patch sizes differ from the store's, or it resizes"
            )

    def key_of(self, ref: MediaRef, digest: str) -> str:
        """Compute the key of a medium whose file has this hash: a handle with it shows that content, under this store's settings."""
        return self._key(stored_as(ref), digest)

    def _key(self, kind: Stored, digest: str) -> str:
        return hashlib.sha256(f"{kind}\n{digest}\n{self._parameters}".encode()).hexdigest()

    def _known(self, ref: MediaRef, place: Place) -> ProcessedMedia | None:
        """The entry of an unchanged file whose content was hashed before."""
        with self._lock:
            digest = self._hashes.get(place)
        if digest is None:
            return None
        if (entry := self._find(self.key_of(ref, digest))) is not None:
            check_hash(ref, digest)
        return entry

    def _find(self, key: str) -> ProcessedMedia | None:
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
                self.stats["cache_hits"] += 1
            return entry

    def _keep(self, key: str, entry: ProcessedMedia) -> None:
        """An entry larger than the whole budget is handed out but not kept."""
        if entry.nbytes > self.settings.cache_bytes:
            return
        with self._lock:
            held = self._entries.pop(key, None)  # frames that two threads have put at once
            self._entries[key] = entry
            self.cached_bytes += entry.nbytes - (0 if held is None else held.nbytes)
            while self.cached_bytes > self.settings.cache_bytes:
                _, old = self._entries.popitem(last=False)
                self.cached_bytes -= old.nbytes
                self.stats["evicted"] += 1
