"""Prompts that go on from an earlier turn: what an engine has read of the turn, and training has computed, need not be done again."""

from __future__ import annotations

import dataclasses

from vlmrl.policy.pack import Row
from vlmrl.types import Prompt


def continues(row: Row, before: Row) -> bool:
    """Whether the prompt of a row begins with another row: its ids and response, and its media in the same columns and no others."""
    own, past = row.prompt, before.prompt
    start, end, media = len(past.ids), len(past.ids) + len(before.response), len(past.media)
    return (
        not own.owners
        and not past.owners
        and len(own.ids) >= end
        and own.ids[start:end] == before.response
        and own.ids[:start] == past.ids
        and own.media[:media] == past.media
        and own.spans[:media] == past.spans
        and all(first >= end for first, _ in own.spans[media:])
    )


def behind(prompt: Prompt, tokens: int, media: int) -> Prompt:
    """What a prompt has behind its first `tokens` and `media`, as a prompt of its own columns."""
    spans = tuple((start - tokens, end - tokens) for start, end in prompt.spans[media:])
    return dataclasses.replace(prompt, ids=prompt.ids[tokens:], media=prompt.media[media:], spans=spans, owners=())
