"""A family's own processor at work: what it makes of a medium by itself, and of a prompt with its media."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from vlmrl.errors import MediaError, RowError
from vlmrl.extras.families import generic
from vlmrl.extras.families.generic import Clip, Medium, Message
from vlmrl.types import MediaKind

T = TypeVar("T")
_ERRORS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, StopIteration, AttributeError)
"""What processors raise where text and media do not fit."""


class ProcessorOutput(NamedTuple):
    """What a family's processor makes of one medium by itself."""

    arguments: Mapping[str, Any]
    """For the tower and for positions."""
    kind: MediaKind
    """Whose placeholder stands for it: frames of a clip are pictures to some families."""
    tokens: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Scribe:
    """A family's own processor at work for the media store (`argue`) and the encoder (`render`, `expand`). One thread at a time."""

    processor: Any
    pads: Mapping[MediaKind, int]
    lock: threading.Lock

    def argue(self, frames: np.ndarray, kind: MediaKind, times: np.ndarray | None, duration: float | None) -> ProcessorOutput:
        """The arguments of one medium. `frames`: uint8 [T, H, W, 3].

        Raises:
            MediaError: `processor`: it refuses this medium.
        """
        stamps = None if times is None else tuple(float(t) for t in times)
        medium = medium_of(frames, kind, stamps, duration)
        arguments, shown_as, tokens = self._asked(MediaError, "processor", lambda: generic.alone(self.processor, self.pads, medium))
        held = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        return ProcessorOutput(arguments, shown_as, tokens, sum(value.numel() * value.element_size() for value in held))

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a prompt, a placeholder per medium."""
        return generic.rendered(self.processor, messages)

    def expand(self, text: str, media: Sequence[Any]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
        """(token ids, kinds of tokens by the name of the core's argument) of a rendered text or a part of one. `media`: its handles with
        their frames.

        Raises:
            RowError: `placeholder`: the processor refuses it.
        """
        handles = [one.handle for one in media]
        given = [medium_of(one.frames, h.kind, h.step_times, h.duration) for one, h in zip(media, handles, strict=True)]
        made = self._asked(RowError, "placeholder", lambda: generic.processed(self.processor, text, given))
        kinds = {name: tuple(made[name][0].tolist()) for name in generic.TYPES if name in made}
        return tuple(made["input_ids"][0].tolist()), kinds

    def _asked(self, kind: type[MediaError] | type[RowError], reason: str, call: Callable[[], T]) -> T:
        try:
            with self.lock:
                return call()
        except _ERRORS as error:
            first = (str(error).splitlines() or [""])[0]
            raise kind(reason, f"{type(self.processor).__name__}: {type(error).__name__}: {first}") from error


def medium_of(frames: np.ndarray, kind: MediaKind, times: Sequence[float] | None, duration: float | None) -> Medium:
    """Decoded frames [T, H, W, 3] as the processor gets them: a copy, for processors may write."""
    frames = np.array(frames)
    if kind == "image":
        return frames[0]
    count = len(frames)
    span = duration or 1.0
    if times is None:
        return Clip(frames, count / span, duration=duration)
    if count > 1 and times[-1] > times[0]:
        span = (times[-1] - times[0]) * count / (count - 1)
    return Clip(frames, count / span, shown=tuple(times), duration=duration)
