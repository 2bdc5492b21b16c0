"""The media and prompts of the kit as training has them: processed one by one, kept by key, encoded as rows are."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.data.encode import Encoder, PromptMedium
from vlmrl.extras.families.conform.subject import Tried
from vlmrl.extras.families.generic import Medium, Message
from vlmrl.extras.families.scribe import Scribe
from vlmrl.types import MediaHandle, MediaKind, Prompt, Sample

NOBODY = Sample(id="asked by the kit", task="", answer_type="", question="", media=(), answer="", gt={})


@dataclass(frozen=True)
class Shelved:
    """A medium as `media.store.ProcessedMedia` has it."""

    handle: MediaHandle
    frames: np.ndarray
    argued: Any


@dataclass
class Shelf:
    """A store of media that are in memory (`data.encode.MediaSource`)."""

    kept: dict[str, Shelved] = field(default_factory=dict[str, Shelved])

    def get_key(self, key: str) -> Shelved:
        """A medium that was put here."""
        return self.kept[key]

    def get(self, ref: Any, root: Path) -> Any:
        """Never: what the kit asks with is no file."""
        raise FileNotFoundError(f"{root}/{ref}")

    plan = get

    def put(self, scribe: Scribe, medium: Medium) -> Shelved:
        """Process a medium.

        Raises:
            MediaError: the processor refuses it.
        """
        kind: MediaKind = "image" if isinstance(medium, np.ndarray) else "video"
        frames = medium[None] if isinstance(medium, np.ndarray) else medium.frames
        times = duration = None
        if not isinstance(medium, np.ndarray):
            times = tuple(medium.shown or (n / medium.fps for n in range(len(frames))))
            duration = medium.duration or len(frames) / medium.fps
        argued = scribe.argue(frames, kind, None if times is None else np.array(times), duration)
        grid = (len(frames), *frames.shape[1:3])
        key = f"medium {len(self.kept)}"
        handle = MediaHandle(kind=kind, key=key, grid_thw=grid, tokens=argued.tokens, step_times=times, duration=duration)
        self.kept[key] = Shelved(handle, frames, argued)
        return self.kept[key]


@dataclass(frozen=True)
class Desk:
    """Where prompts are encoded."""

    shelf: Shelf
    scribe: Scribe
    encoder: Encoder

    def prompt(self, messages: Sequence[Message], media: Sequence[Medium]) -> Prompt:
        """A conversation up to an answer, encoded as training encodes one.

        Raises:
            RowError, MediaError: what encoding raises.
        """
        shown = [self.shelf.put(self.scribe, medium) for medium in media]
        return self.encoder.encode_turns(NOBODY, [dict(message) for message in messages], [PromptMedium(s.handle, s.frames) for s in shown])


def desk_of(tried: Tried) -> Desk:
    """With an empty shelf."""
    shelf, pads = Shelf(), dict(tried.facts.pads)
    scribe = Scribe(processor=tried.processor, pads=pads, lock=threading.Lock())
    special = {int(i) for i in tried.processor.tokenizer.all_special_ids} | set(tried.facts.forbidden_ids)
    encoder = Encoder(
        tokenizer=tried.processor.tokenizer,
        media=shelf,
        data_root=Path(),
        pad_ids=pads,
        special_ids=frozenset(special),
        max_prompt_tokens=1 << 20,
        writer=scribe,
    )
    return Desk(shelf, scribe, encoder)


def spoken(role: str, text: str, media: Sequence[str] = ()) -> Mapping[str, Any]:
    """A message of media and a text."""
    return {"role": role, "content": [*({"type": kind} for kind in media), {"type": "text", "text": text}]}
