"""Judges behind an OpenAI-compatible `chat/completions`: questions with pictures in, checked verdicts out, each thing asked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.rewards.remote import prompts
from vlmrl.rewards.remote.asking import Asker
from vlmrl.rewards.remote.pictures import Picture
from vlmrl.rewards.remote.verdicts import Check, Problem, Unreadable, Verdict, read_object

PATH = "chat/completions"
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


class ChatJudge(Asker[Ask]):
    """Asks one judge."""

    path = PATH

    def ask_all(self, column: str, asks: Sequence[Ask]) -> list[Verdict | Problem]:
        """One verdict per question: see `Asker.verdicts`."""
        return self.verdicts(column, asks)

    def check(self, question: Ask, found: Mapping[str, Any]) -> Verdict:
        return question.check(found)

    def read(self, question: Ask, key: str, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        return question.read(reply, prompts.ident_of(key))

    def key(self, question: Ask) -> str:
        rest = {"model": self.client.endpoint.model, "body": self._options(question), "seed": SEED}
        return prompts.digest(question.template, question.values, [picture.digest for picture in question.pictures], rest)

    def body(self, question: Ask, key: str, wrong: tuple[Mapping[str, Any], str] | None) -> dict[str, Any]:
        messages = self._messages(question, key)
        if wrong is not None and question.json_reply:
            messages += _complaint(*wrong)
        return {"model": self.client.endpoint.model, "messages": messages, **self._options(question)}

    def canary(self) -> dict[str, Any]:
        return {"model": self.client.endpoint.model, "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 8}

    def count(self, reply: Mapping[str, Any]) -> None:
        e = self.client.endpoint
        usage = reply.get("usage")
        used = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
        prompt, completion = (n if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= 10**9 else 0 for n in used)
        self.client.meters.tokens(prompt, completion, price_in=e.price_in, price_out=e.price_out)

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
