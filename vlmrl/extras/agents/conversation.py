"""Conversations as token ids: answers as they were sampled, observations as segments between them. Nothing is tokenised twice.

A conversation is a chain of segments: the first prompt, then an answer and an observation by turns. A turn is a row of training: all
segments before an answer are its prompt, the answer's ids its response. Observations are never responses, so no mask can be forgotten.

The text between the end of an answer and the next one is asked of the chat template once. The template must only append: what it wrote
before must stay as it is when more messages follow. The line break behind the end of an answer belongs to the observation; an answer
that was cut off gets its end token there as well, untrained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.data.encode import Encoder, LaidOut, PromptMedium
from vlmrl.errors import RowError
from vlmrl.types import MediaHandle, Prompt, digest

_FIRST, _ANSWER = "question", "answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Token ids that come together."""

    ids: tuple[int, ...]
    media: tuple[MediaHandle, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """Half-open ranges of placeholders, from the segment's own start."""
    owners: tuple[int, ...] = ()
    """For each span the number of its medium in the segment; empty: each medium has one span, as in `Prompt`."""
    kinds: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """As `Prompt.kinds`."""
    sampled: bool = False
    """An answer. Nothing else is trained."""
    key: str
    """Equal keys: equal ids and media after an equal past."""


def first_segment(prompt: Prompt) -> Segment:
    """A prompt as the beginning of a conversation."""
    laid = LaidOut(prompt.ids, prompt.spans, prompt.owners or tuple(range(len(prompt.media))), prompt.kinds)
    return _segment(None, laid, prompt.media, sampled=False)


def answer_segment(before: Segment, ids: Sequence[int]) -> Segment:
    """An answer, exactly as it was sampled."""
    if not ids:
        raise ValueError("an answer has at least one token")
    return _segment(before, LaidOut(tuple(ids), (), (), {}), (), sampled=True)


def joined(chain: Sequence[Segment], like: Prompt) -> Prompt:
    """A chain as one prompt: ids and media one after the other, spans moved. `like` gives the sample, the answer format, and the names of
    kinds of tokens: answers are text, of kind 0."""
    ids: list[int] = []
    media: list[MediaHandle] = []
    spans: list[tuple[int, int]] = []
    owners: list[int] = []
    for segment in chain:
        spans += [(start + len(ids), end + len(ids)) for start, end in segment.spans]
        owners += [owner + len(media) for owner in segment.owners or range(len(segment.media))]
        ids += segment.ids
        media += segment.media
    kinds = {name: tuple(kind for segment in chain for kind in segment.kinds.get(name, (0,) * len(segment.ids))) for name in like.kinds}
    return LaidOut(tuple(ids), tuple(spans), tuple(owners), kinds).put(dataclasses.replace(like, media=tuple(media)))


def turns(chain: Sequence[Segment], like: Prompt) -> list[tuple[Prompt, tuple[int, ...]]]:
    """(prompt, response ids) of every answer of a chain, in order: the rows that it trains."""
    return [(joined(chain[:n], like), segment.ids) for n, segment in enumerate(chain) if segment.sampled]


def told(
    encoder: Encoder, first: Prompt, answers: Sequence[Sequence[int]], shown: Sequence[tuple[str, Sequence[MediaHandle]]]
) -> list[tuple[Prompt, tuple[int, ...]]]:
    """The rows of a conversation that begins with a prompt. `shown`: text and media between the answers.

    Raises:
        RowError: as `Conversation`.
    """
    conversation, chain = Conversation(encoder), [first_segment(first)]
    for number, ids in enumerate(answers):
        if number:
            chain.append(conversation.observation(chain[-1], *shown[number - 1]))
        chain.append(answer_segment(chain[-1], ids))
    return turns(chain, first)


def _segment(before: Segment | None, laid: LaidOut, media: tuple[MediaHandle, ...], *, sampled: bool) -> Segment:
    past = "" if before is None else before.key
    key = digest([past, list(laid.ids), [handle.key for handle in media], sampled])
    return Segment(ids=laid.ids, media=media, spans=laid.spans, owners=laid.owners, kinds=laid.kinds, sampled=sampled, key=key)


class Conversation:
    """The text between answers, for one model."""

    def __init__(self, encoder: Encoder):
        """
        Raises:
            RowError: `template`: the chat template changes what it wrote before, or ends an answer with no single token.
        """
        self.encoder = encoder
        self._head = encoder.rendered([_message("user", _FIRST)])
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
        whole, plain = (self._between(shown, media) for shown in (text, "text"))
        found, expected = (sum(i in self.encoder.special_ids for i in self.encoder.tokenize(one)) for one in (whole, plain))
        if found != expected:
            raise RowError("control_token", f"an observation contains {found - expected} control token(s) of the model")
        laid = self._laid(whole, media)
        return _segment(before, laid if before.ids[-1] != self.end else _behind_first(laid), tuple(media), sampled=False)

    def _laid(self, text: str, media: Sequence[MediaHandle]) -> LaidOut:
        encoder, where = self.encoder, "an observation"
        if encoder.writer is None:
            return encoder.spread(encoder.tokenize(text), media, where)
        store: Any = encoder.media  # the one that has made these media, so it gives them by their keys as well
        return encoder.expanded(encoder.writer, text, [PromptMedium(one, store.get_key(one.key).frames) for one in media], where)

    def _between(self, text: str, media: Sequence[MediaHandle]) -> str:
        """From the end token of an answer to the beginning of the next, with one placeholder per medium."""
        content = [*({"type": handle.kind} for handle in media), {"type": "text", "text": text}]
        whole = self.encoder.rendered([_message("user", _FIRST), _message("assistant", _ANSWER), {"role": "user", "content": content}])
        # a template may write a blank where an answer begins, which the model writes itself
        told = whole.removeprefix(self._head).lstrip() if whole.startswith(self._head) else ""
        if not told.startswith(_ANSWER):
            raise RowError("template", "the chat template rewrites earlier turns, so answers would not stay what was sampled")
        return told[len(_ANSWER) :]


def _behind_first(laid: LaidOut) -> LaidOut:
    """Without the first column, which is the end token of an answer."""
    spans = tuple((start - 1, end - 1) for start, end in laid.spans)
    return LaidOut(laid.ids[1:], spans, laid.owners, {name: kinds[1:] for name, kinds in laid.kinds.items()})


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}
