"""Media as a model's own processor takes them: its arguments of each medium by itself, and its tokens from headers alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vlmrl.media.sizing import Grid
from vlmrl.types import MediaKind


class ProcessedMedium(Protocol):
    """What a processor makes of one medium."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    @property
    def kind(self) -> MediaKind: ...

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


Argue = Callable[[np.ndarray, MediaKind, np.ndarray | None, float | None], ProcessedMedium]
"""(frames uint8 [T, h, w, 3], kind, times on screen, seconds) -> arguments. The processor may resize; frames are not sampled again."""


class Writer(Protocol):
    """A family's own processor, which cuts media and makes ids from text and media together."""

    @property
    def argue(self) -> Argue: ...

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """Render the text of a prompt, a placeholder per medium."""
        ...

    def expand(self, text: str, media: Sequence[Any]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
        """Make the ids of a rendered text, or of a part of one. `media`: its handles with their frames.

        Returns:
            (token ids, kinds of tokens by the name of the model's argument).

        Raises:
            RowError: `placeholder`: the processor refuses it.
        """
        ...


class MediaProcessor(Protocol):
    """What a store needs to know of a model: `policy.load.ProcessorBundle` is one."""

    @property
    def patch_size(self) -> int: ...

    @property
    def merge_size(self) -> int: ...

    @property
    def temporal_patch_size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def step_times(self) -> bool: ...

    @property
    def patch_dtype(self) -> type[np.generic]: ...

    @property
    def argue(self) -> Argue | None: ...

    def patchify(self, frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, Grid]: ...


def blank(grid: Grid) -> np.ndarray:
    """Make black frames of this number and size, in hardly any memory: what a processor makes of sizes does not depend on colours.

    Returns:
        uint8 [T, h, w, 3] for a grid (T, h, w) in frames and pixels; one pixel seen many times, read-only.
    """
    return np.broadcast_to(np.zeros((1, 1, 1, 3), dtype=np.uint8), (*grid, 3))


class PlannedTokens:
    """Placeholder tokens of media whose sizes are known, each size asked for once."""

    def __init__(self, argue: Argue):
        self._argue = argue
        self._known: dict[tuple[MediaKind, Grid], int] = {}
        self._lock = threading.Lock()

    def of(self, kind: MediaKind, grid: Grid, times: np.ndarray | None, duration: float | None) -> int:
        """Count the placeholder tokens of a medium of `grid` frames and pixels."""
        with self._lock:
            known = self._known.get((kind, grid))
        if known is None:
            # outside the lock: the processor takes long, and a second thread that asks for the same size finds the same number
            known = self._argue(np.ascontiguousarray(blank(grid)), kind, times, duration).tokens
            with self._lock:
                self._known[(kind, grid)] = known
        return known
