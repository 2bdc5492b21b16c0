"""A family without code of ours: training knows of it what its config, its generation config and its own processor say."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from vlmrl.errors import ConfigError, MediaError, RowError
from vlmrl.families import generic, probe, tiles
from vlmrl.families.base import Tokens
from vlmrl.families.generic import Clip, Medium, Message
from vlmrl.families.registry import read_json
from vlmrl.types import MediaKind, Part

T = TypeVar("T")
_ERRORS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, StopIteration, AttributeError)
"""What processors raise where text and media do not fit."""


@dataclass(frozen=True, kw_only=True)
class GenericFamily:
    """Any model type that transformers has classes for (`families.base.Family`)."""

    name: str
    config: Any
    generation: Any
    """Its generation config; None where the folder has none."""
    choice: str = "generic"
    own_code: bool = False
    time_scaled: bool = False
    step_times: bool = True

    def tokens(self, processor: Any, path: str) -> Tokens:
        """Ids by config and processor, never by name.

        Raises:
            ConfigError: nothing says which token ends an answer, or which stands for a picture.
        """
        pads = generic.placeholders(self.config)
        ends = self._ends(processor)
        if not ends or not pads:
            lacks = "an end of answers" if not ends else "a placeholder of pictures"
            raise ConfigError(f"model.path: neither config nor tokenizer of '{path}' names {lacks}; vlmrl conform {path} says more")
        forbidden = probe.forbidden_ids(processor, pads, self.config.get_text_config().vocab_size)
        special = {int(i) for i in processor.tokenizer.all_special_ids} | set(forbidden)
        return Tokens(
            pad_ids=pads, special_ids=frozenset(special), forbidden_ids=tuple(i for i in forbidden if i not in ends), end_ids=ends
        )

    def _ends(self, processor: Any) -> tuple[int, ...]:
        """Ends of an answer; first the one that the chat template writes behind an answer, which is what training teaches."""
        ends = probe.ends_of((self.generation, self.config.get_text_config(), processor.tokenizer))
        word = "answer"
        asked: list[Message] = [
            {"role": role, "content": [{"type": "text", "text": text}]} for role, text in (("user", "question"), ("assistant", word))
        ]
        text = str(processor.apply_chat_template(list(asked), tokenize=False))
        behind = processor.tokenizer(text.rpartition(word)[2], add_special_tokens=False)["input_ids"]
        first = next((int(i) for i in behind if int(i) in ends), None)
        return ends if first is None else (first, *(i for i in ends if i != first))

    def cap_tiles(self, processor: Any, most: int, path: str) -> None:
        """By what its image processor calls it (`families.tiles`)."""
        tiles.cap(processor, most, path)

    def adaptable(self, model: Any) -> Sequence[str]:
        """By the layers of its decoder, whatever they are called."""
        return probe.adaptable(model)

    def part_of(self, name: str) -> Part:
        """By the names that transformers gives to modules."""
        return probe.part_of(name)


def given(model_type: str, path: str, revision: str | None = None) -> GenericFamily:
    """Any model type, by what its files say. Raises ConfigError where they cannot be read."""
    from transformers import AutoConfig, GenerationConfig
    from transformers.utils.hub import cached_file

    where = str(Path(path).expanduser()) if Path(path).expanduser().exists() else path
    try:
        config = AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: cannot load the config of '{path}': {str(error).strip().splitlines()[0]}") from error
    generation: Any = None
    with contextlib.suppress(OSError, ValueError):  # many folders have none; the config then says what ends an answer
        file = cached_file(where, "generation_config.json", revision=revision)
        generation = None if file is None else GenerationConfig.from_dict(read_json(Path(file)))
    return GenericFamily(name=model_type, config=config, generation=generation)


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

    def expand(self, messages: Sequence[Message], media: Sequence[Any]) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
        """(token ids, kinds of tokens by the name of the core's argument) of a prompt. `media`: its handles with their frames.

        Raises:
            RowError: `placeholder`: the processor refuses it.
        """
        handles = [one.handle for one in media]
        given = [medium_of(one.frames, h.kind, h.step_times, h.duration) for one, h in zip(media, handles, strict=True)]
        made = self._asked(RowError, "placeholder", lambda: generic.processed(self.processor, self.render(messages), given))
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
