"""Judges behind an OpenAI-compatible `chat/completions`: questions with pictures in, checked verdicts out, each thing asked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.rewards.remote import prompts
from vlmrl.rewards.remote.cache import VerdictCache
from vlmrl.rewards.remote.client import Client
from vlmrl.rewards.remote.exchange import Failure
from vlmrl.rewards.remote.pictures import Picture
from vlmrl.rewards.remote.verdicts import Check, Problem, Unreadable, Verdict, read_object

PATH = "chat/completions"
REASKS = 2
"""Times that a judge is told what was wrong with its reply and asked again."""
TEMPERATURE = 0
SEED = 0

Reader = Callable[[Mapping[str, Any], str], Mapping[str, Any]]
"""(reply of the service, id) -> what the check looks at; raises `Unreadable`."""


def read_verdict(reply: Mapping[str, Any], ident: str) -> Mapping[str, Any]:
    """The JSON object that the judge wrote."""
    return read_object(content(reply), ident)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question to a judge."""

    template: str
    """Of `prompts.TEMPLATES`."""
    values: Mapping[str, str]
    check: Check
    pictures: Sequence[Picture] = ()
    read: Reader = read_verdict
    json_reply: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More fields of the request."""


class ChatJudge:
    """Asks one service."""

    def __init__(self, client: Client, cache: VerdictCache | None):
        self.client = client
        self._cache = cache

    def ask_all(self, column: str, asks: Sequence[Ask]) -> list[Verdict | Problem]:
        """One verdict per question, in order; equal questions are asked once. `column`: the reward that asks, for counting.

        Raises:
            RemoteError, Preempted: as `Client.send`.
            StorageError: the cache cannot be written.
        """
        keys = [self._key(ask) for ask in asks]
        todo = dict(zip(keys, asks, strict=True))
        found = dict(zip(todo, self.client.map(lambda item: self._one(*item), list(todo.items())), strict=True))
        out = [found[key] for key in keys]
        for verdict in out:
            if isinstance(verdict, Problem):
                self.client.meters.unjudged(column, verdict.reason)
        return out

    def _one(self, key: str, ask: Ask) -> Verdict | Problem:
        kept = None if self._cache is None else self._cache.get(key)
        if kept is not None:
            try:
                verdict = ask.check(kept)
                self.client.meters.add("judge/cache_hits")
                return verdict
            except Unreadable:  # kept under other rules: ask
                pass
        asked = self._ask(key, ask)
        if self._cache is not None and not isinstance(asked, Problem):
            self._cache.put(key, asked)
        return asked

    def _ask(self, key: str, ask: Ask) -> Verdict | Problem:
        ident = prompts.ident_of(key)
        messages = self._messages(ask, key)
        problem = Problem(reason="unasked", detail="")
        for turn in range(REASKS + 1):
            if turn:
                self.client.meters.add("judge/reasks")
            reply = self.client.send(PATH, self._body(ask, messages), name=key, canary=self._canary())
            if isinstance(reply, Failure):
                return Problem(reason=reply.reason, detail=reply.detail)
            self._count_tokens(reply)
            try:
                return ask.check(ask.read(reply, ident))
            except Unreadable as error:
                problem = Problem(reason=error.reason, detail=str(error))
                if ask.json_reply:
                    messages = [*self._messages(ask, key), *_complaint(reply, str(error))]
        return problem

    def _key(self, ask: Ask) -> str:
        rest = {"model": self.client.endpoint.model, "body": self._options(ask), "seed": SEED}
        return prompts.digest(ask.template, ask.values, [picture.digest for picture in ask.pictures], rest)

    def _messages(self, ask: Ask, key: str) -> list[dict[str, Any]]:
        system, user = prompts.render(ask.template, ask.values, key)
        content: Any = user
        if ask.pictures:
            parts = [part for picture in ask.pictures for part in ({"type": "text", "text": picture.label}, picture.part())]
            content = [*parts, {"type": "text", "text": user}]
        return [{"role": "system", "content": system}, {"role": "user", "content": content}]

    def _options(self, ask: Ask) -> dict[str, Any]:
        e = self.client.endpoint
        options: dict[str, Any] = {"max_tokens": e.max_tokens, "temperature": TEMPERATURE, "seed": SEED}
        if e.json_mode and ask.json_reply:
            options["response_format"] = {"type": "json_object"}
        return {**options, **ask.extra}

    def _body(self, ask: Ask, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"model": self.client.endpoint.model, "messages": messages, **self._options(ask)}

    def _canary(self) -> dict[str, Any]:
        return {"model": self.client.endpoint.model, "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 8}

    def _count_tokens(self, reply: Mapping[str, Any]) -> None:
        e = self.client.endpoint
        usage = reply.get("usage")
        used = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
        prompt, completion = (n if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= 10**9 else 0 for n in used)
        self.client.meters.tokens(prompt, completion, price_in=e.price_in, price_out=e.price_out)


def choice_of(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a reply.

    Raises:
        Unreadable: `envelope`.
    """
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unreadable("envelope", "the reply has no choices")
    return choices[0]


def content(reply: Mapping[str, Any]) -> str:
    """The text that the model wrote, without the thoughts of one that thinks.

    Raises:
        Unreadable: `envelope`.
    """
    message = choice_of(reply).get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise Unreadable("envelope", "the reply has no text")
    return text.rsplit("</think>", 1)[-1]


def _complaint(reply: Mapping[str, Any], problem: str) -> list[dict[str, Any]]:
    """The turn that was wrong, and what to do about it."""
    try:
        text = content(reply)
    except Unreadable:
        return []
    wish = f"That could not be read: {problem}. Reply again with the JSON object alone."
    return [{"role": "assistant", "content": prompts.clean(text[:2000])}, {"role": "user", "content": wish}]
