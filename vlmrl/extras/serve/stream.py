"""Streamed replies: the text of an answer while it grows, and the server-sent events of OpenAI's chat completions. Pure.

What has been sent cannot be taken back. So an unfinished character waits for its other bytes, and the beginning of a stop string for what
follows; the pieces of an answer together are its text, whatever the tokens are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.extras.serve.protocol import Chat, Choice, Refused, cut_at, logprobs_of, usage

UNFINISHED = "\ufffd"
"""What a decoder makes of bytes that are no character yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What an answer has grown by."""

    place: int
    """Of the answer among those that were generated."""
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Growing:
    """The text of one answer while it is generated."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]):
        """`decode`: text of answer ids, without control tokens."""
        self.decode, self.stops = decode, stops
        self.stopped = False
        """Whether a stop string has been generated: nothing behind it is part of the answer."""
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._said = ""
        self._told = 0

    def add(self, token: int, logprob: float) -> str:
        """The text that can be sent after one more token; empty while it may still change."""
        self._ids.append(token)
        self._logprobs.append(logprob)
        text = self.decode(self._ids)
        before = cut_at(text, self.stops)
        self.stopped = before is not None
        safe = before if before is not None else _certain(text, self.stops)
        return safe[len(self._said) :] if safe.startswith(self._said) else ""

    def take(self, place: int, text: str) -> Piece:
        """The piece with this text, and the tokens since the last one."""
        piece = Piece(place=place, text=text, ids=tuple(self._ids[self._told :]), logprobs=tuple(self._logprobs[self._told :]))
        self._said, self._told = self._said + text, len(self._ids)
        return piece

    def rest(self, text: str) -> str:
        """What of the whole text was not sent yet.

        Raises:
            RuntimeError: the tokenizer writes what was sent otherwise, now that all tokens are there.
        """
        if not text.startswith(self._said):
            raise RuntimeError("this tokenizer writes earlier words otherwise once later ones are there; ask without 'stream'")
        return text[len(self._said) :]


def _certain(text: str, stops: Sequence[str]) -> str:
    """`text` without what more tokens could change or make a part of a stop string."""
    text = text.rstrip(UNFINISHED)
    held = max((n for stop in stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]


class Events:
    """The server-sent events of one reply."""

    def __init__(self, chat: Chat, name: str, created: int):
        self.chat = chat
        self._head = {"id": name, "object": "chat.completion.chunk", "created": created, "model": chat.model}

    def opening(self) -> str:
        """The role of each answer."""
        return "".join(self._chunk(n, {"role": "assistant", "content": ""}) for n in range(self.chat.n))

    def piece(self, choices: Sequence[int], piece: Piece, pieces: Sequence[str]) -> str:
        """More of an answer. `choices`: which answers of the reply it belongs to; `pieces`: text of each token, with log-probs alone."""
        one = Choice(text=piece.text, finish="", ids=piece.ids, pieces=tuple(pieces), logprobs=piece.logprobs)
        logprobs = logprobs_of(one) if self.chat.logprobs else None
        more = {"token_ids": list(piece.ids)} if self.chat.token_ids else {}
        return "".join(self._chunk(n, {"content": piece.text}, logprobs=logprobs, more=more) for n in choices)

    def closing(self, prompt_tokens: int, choices: Sequence[Choice]) -> str:
        """How each answer ended, the usage where it is asked for, and the end of the stream."""
        out = [self._chunk(n, {}, finish=one.finish) for n, one in enumerate(choices)]
        if self.chat.include_usage:
            out.append(event({**self._head, "choices": [], "usage": usage(prompt_tokens, choices)}))
        return "".join([*out, "data: [DONE]\n\n"])

    def failed(self, error: Exception) -> str:
        """An error after the stream has begun, as vLLM sends it."""
        body = Refused(f"{type(error).__name__}: {error}", status=500).body()
        return event(body) + "data: [DONE]\n\n"

    def _chunk(
        self, place: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: Any = None, more: Mapping[str, Any] | None = None
    ) -> str:
        choice = {"index": place, "delta": delta, "logprobs": logprobs, "finish_reason": finish, **(more or {})}
        asked = {"usage": None} if self.chat.include_usage else {}
        return event({**self._head, "choices": [choice], **asked})


def event(value: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=True)}\n\n"
