"""Messages and media to a `Prompt`: the only place where prompt token ids are made.

The chat template is rendered once with one placeholder per medium, tokenised once, and each placeholder is repeated as often
as that medium has features. Counts are compared on the way; nothing is padded, dropped or truncated to make them fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlmrl.data.render import messages
from vlmrl.errors import RowError
from vlmrl.types import MediaHandle, MediaKind, MediaRef, Prompt, Sample


class Tokenizer(Protocol):
    """What encoding needs of a transformers tokenizer."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def __call__(self, text: str, **kwargs: Any) -> Any: ...


class Media(Protocol):
    """What encoding needs of `media.store.MediaStore`."""

    def get(self, ref: MediaRef, root: Path) -> Any: ...

    def plan(self, ref: MediaRef, root: Path) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns samples into prompts for one model.

    `pad_ids` maps a medium's kind to its placeholder id; `special_ids` are all control tokens of the tokenizer.
    """

    tokenizer: Any
    media: Media
    data_root: Path
    pad_ids: dict[MediaKind, int]
    special_ids: frozenset[int]
    max_prompt_tokens: int

    def root(self, sample: Sample) -> Path:
        """Folder that the sample's media paths are relative to."""
        return self.data_root / sample.media_root

    def encode(self, sample: Sample, template: str) -> Prompt:
        """Decode the sample's media (once per content, cached) and make its prompt.

        Raises:
            MediaError: a medium cannot be read or decoded.
            RowError: `overlong`, `control_token` or `placeholder` (counts disagree), naming the row.
        """
        handles = tuple(self.media.get(ref, self.root(sample)).handle for ref in sample.media)
        return self._prompt(sample, template, handles)

    def plan(self, sample: Sample, template: str) -> Prompt:
        """The same prompt computed from media headers alone: same ids and spans for well-formed files, empty handle keys."""
        handles = tuple(self.media.plan(ref, self.root(sample)) for ref in sample.media)
        return self._prompt(sample, template, handles)

    def _prompt(self, sample: Sample, template: str, handles: Sequence[MediaHandle]) -> Prompt:
        text = self.tokenizer.apply_chat_template(messages(sample, template), tokenize=False, add_generation_prompt=True)
        short = [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        self._check_control_tokens(sample, template, short)
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        waiting = list(handles)
        for token in short:
            if token not in self.pad_ids.values():
                ids.append(token)
                continue
            if not waiting or self.pad_ids[waiting[0].kind] != token:
                raise RowError("placeholder", f"{_where(sample)}: placeholders and media disagree in number or order")
            handle = waiting.pop(0)
            spans.append((len(ids), len(ids) + handle.tokens))
            ids.extend([token] * handle.tokens)
        if waiting:
            raise RowError("placeholder", f"{_where(sample)}: {len(waiting)} media have no placeholder in the chat template")
        if len(ids) > self.max_prompt_tokens:
            raise RowError(
                "overlong",
                f"{_where(sample)}: {len(ids)} prompt tokens > data.max_prompt_tokens {self.max_prompt_tokens}; "
                "lower media.max_pixels, media.fps or media.max_frames, or raise the limit",
            )
        return Prompt(sample=sample, ids=tuple(ids), media=tuple(handles), spans=tuple(spans), template=template)

    def _check_control_tokens(self, sample: Sample, template: str, ids: list[int]) -> None:
        """Text of a row must not smuggle in control tokens: their count equals that of the same prompt with a harmless question."""
        plain = dataclasses.replace(sample, question="question")
        text = self.tokenizer.apply_chat_template(messages(plain, template), tokenize=False, add_generation_prompt=True)
        expected = sum(int(i) in self.special_ids for i in self.tokenizer(text, add_special_tokens=False)["input_ids"])
        found = sum(i in self.special_ids for i in ids)
        if found != expected:
            raise RowError("control_token", f"{_where(sample)}: the question contains {found - expected} control token(s) of the model")


def _where(sample: Sample) -> str:
    return f"row '{sample.id}' ({sample.source})"
