"""Conversations as token ids: answers as they were sampled, observations as segments between them. Nothing is tokenised twice.

A conversation is a chain of segments: the first prompt, then an answer and an observation by turns. A turn is a row of training: all
segments before an answer are its prompt, the answer's ids its response. Observations are never responses, so no mask can be forgotten.

The text between the end of an answer and the next one is asked of the chat template once. The template must only append: what it wrote
before must stay as it is when more messages follow. The line break behind the end of an answer belongs to the observation; an answer
that was cut off gets its end token there as well, untrained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.data.encode import Encoder
from vlmrl.errors import RowError
from vlmrl.types import MediaHandle, Prompt, digest

_FIRST, _ANSWER = "question", "answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Token ids that come together."""

    ids: tuple[int, ...]
    media: tuple[MediaHandle, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of placeholders, from the segment's own start: one per medium."""
    sampled: bool = False
    """An answer. Nothing else is trained."""
    key: str
    """Equal keys: equal ids and media after an equal past."""


def first_segment(prompt: Prompt) -> Segment:
    """A prompt as the beginning of a conversation.

    Raises:
        ValueError: a medium with several spans (a video with times written between its steps).
    """
    if prompt.owners:
        raise ValueError(f"row '{prompt.sample.id}': videos with a span per step cannot begin a conversation yet")
    return _segment(None, prompt.ids, prompt.media, prompt.spans, sampled=False)


def answer_segment(before: Segment, ids: Sequence[int]) -> Segment:
    """An answer, exactly as it was sampled."""
    if not ids:
        raise ValueError("an answer has at least one token")
    return _segment(before, tuple(ids), (), (), sampled=True)


def joined(chain: Sequence[Segment], like: Prompt) -> Prompt:
    """A chain as one prompt: ids and media one after the other, spans moved. `like` gives the sample and the answer format."""
    ids: list[int] = []
    media: list[MediaHandle] = []
    spans: list[tuple[int, int]] = []
    for segment in chain:
        spans += [(start + len(ids), end + len(ids)) for start, end in segment.spans]
        ids += segment.ids
        media += segment.media
    return dataclasses.replace(like, ids=tuple(ids), media=tuple(media), spans=tuple(spans), owners=())


def turns(chain: Sequence[Segment], like: Prompt) -> list[tuple[Prompt, tuple[int, ...]]]:
    """(prompt, response ids) of every answer of a chain, in order: the rows that it trains."""
    return [(joined(chain[:n], like), segment.ids) for n, segment in enumerate(chain) if segment.sampled]


def _segment(
    before: Segment | None, ids: tuple[int, ...], media: tuple[MediaHandle, ...], spans: tuple[tuple[int, int], ...], *, sampled: bool
) -> Segment:
    past = "" if before is None else before.key
    key = digest([past, list(ids), [handle.key for handle in media], sampled])
    return Segment(ids=ids, media=media, spans=spans, sampled=sampled, key=key)


class Conversation:
    """The text between answers, for one model."""

    def __init__(self, encoder: Encoder):
        """
        Raises:
            RowError: `template`: the chat template changes what it wrote before, or ends an answer with no single token.
        """
        self.encoder = encoder
        self._head = self._rendered([_message("user", _FIRST)]) + _ANSWER
        ids = encoder.tokenize(self._between("text", ()))
        if not ids or ids[0] not in encoder.special_ids:
            raise RowError("template", "the chat template does not end an answer with a control token")
        self.end = ids[0]
        """The token that ends an answer."""

    def observation(self, before: Segment, text: str, media: Sequence[MediaHandle]) -> Segment:
        """The next observation, behind an answer: media, then text.

        Raises:
            RowError: `control_token`: the text holds control tokens of the model; `placeholder`: media and placeholders disagree.
        """
        if not before.sampled:
            raise ValueError("an observation follows an answer")
        short, plain = (self.encoder.tokenize(self._between(shown, media)) for shown in (text, "text"))
        found, expected = (sum(i in self.encoder.special_ids for i in ids) for ids in (short, plain))
        if found != expected:
            raise RowError("control_token", f"an observation contains {found - expected} control token(s) of the model")
        if before.ids[-1] == self.end:
            short = short[1:]
        ids, spans, owners = self.encoder.spread(short, media, "an observation")
        if owners != list(range(len(media))):
            raise RowError("placeholder", "an observation shows pictures, or videos of one span")
        return _segment(before, tuple(ids), tuple(media), tuple(spans), sampled=False)

    def _between(self, text: str, media: Sequence[MediaHandle]) -> str:
        """From the end token of an answer to the beginning of the next, with one placeholder per medium."""
        content = [*({"type": handle.kind} for handle in media), {"type": "text", "text": text}]
        whole = self._rendered([_message("user", _FIRST), _message("assistant", _ANSWER), {"role": "user", "content": content}])
        if not whole.startswith(self._head):
            raise RowError("template", "the chat template rewrites earlier turns, so answers would not stay what was sampled")
        return whole[len(self._head) :]

    def _rendered(self, messages: list[dict[str, Any]]) -> str:
        return self.encoder.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}
