"""Judges (OpenAI-compatible chat) and reward models (one number per answer): questions in, checked verdicts out.

Both (`ServiceClient`) ask each thing once, use verdicts that were kept, and ask again after an unreadable reply. A reward model takes
`{"model", "inputs": [{"id", "question", "response", "images"}]}`, one input per request, and gives `{"scores": [{"id", "score"}, ...]}`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from vlmrl.extras.judges import prompts
from vlmrl.extras.judges.cache import VerdictCache
from vlmrl.extras.judges.client import Client
from vlmrl.extras.judges.material import Picture
from vlmrl.extras.judges.prompts import ident_of
from vlmrl.extras.judges.transport import Failure
from vlmrl.extras.judges.verdicts import Check, Problem, Unreadable, Verdict, read_object, score_check

REASKS = 2
"""Times that a service is asked again after a reply that is no verdict."""

Q = TypeVar("Q")
"""A question."""


class ServiceClient(Generic[Q]):
    """Asks one service. A kind of service says how its questions and replies look: the methods without a body here."""

    path = ""
    """Below the endpoint's address."""

    def __init__(self, client: Client, cache: VerdictCache | None):
        self.client = client
        self._cache = cache

    def key(self, question: Q) -> str:
        """Address of the verdict: a hash of everything that is asked."""
        raise NotImplementedError

    def check(self, question: Q, found: Mapping[str, Any]) -> Verdict:
        """The verdict in what was read or kept. Raises Unreadable. Must accept its own result."""
        raise NotImplementedError

    def read(self, question: Q, key: str, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a reply says. Raises Unreadable."""
        raise NotImplementedError

    def body(self, question: Q, key: str, wrong: tuple[Mapping[str, Any], str] | None) -> dict[str, Any]:
        """The request; `wrong` is the last reply with what was wrong with it, where the question is asked again."""
        raise NotImplementedError

    def canary(self) -> dict[str, Any]:
        """A small request that any healthy service of the kind answers."""
        raise NotImplementedError

    def count(self, reply: Mapping[str, Any]) -> None:
        """Look at what a reply cost. By default nothing is known."""

    def verdicts(self, column: str, questions: Sequence[Q]) -> list[Verdict | Problem]:
        """One verdict per question, in order; equal questions are asked once. `column`: the reward that asks, for counting.

        Raises:
            RemoteError, Preempted: as `Client.send`.
            StorageError: the cache cannot be written.
        """
        keys = [self.key(question) for question in questions]
        todo = dict(zip(keys, questions, strict=True))
        found = dict(zip(todo, self.client.map(lambda item: self._one(*item), list(todo.items())), strict=True))
        out = [found[key] for key in keys]
        for verdict in out:
            if isinstance(verdict, Problem):
                self.client.meters.unjudged(column, verdict.reason)
        return out

    def _one(self, key: str, question: Q) -> Verdict | Problem:
        kept = None if self._cache is None else self._cache.get(key)
        if kept is not None:
            try:
                verdict = self.check(question, kept)
                self.client.meters.add("judge/cache_hits")
                return verdict
            except Unreadable:  # kept under other rules: ask
                pass
        asked = self._ask(key, question)
        if self._cache is not None and not isinstance(asked, Problem):
            self._cache.put(key, asked)
        return asked

    def _ask(self, key: str, question: Q) -> Verdict | Problem:
        problem = Problem(reason="unasked", detail="")
        wrong: tuple[Mapping[str, Any], str] | None = None
        for turn in range(REASKS + 1):
            if turn:
                self.client.meters.add("judge/reasks")
            reply = self.client.send(self.path, self.body(question, key, wrong), name=key, canary=self.canary())
            if isinstance(reply, Failure):
                return Problem(reason=reply.reason, detail=reply.detail)
            self.count(reply)
            try:
                return self.check(question, self.read(question, key, reply))
            except Unreadable as error:
                problem = Problem(reason=error.reason, detail=str(error))
                wrong = (reply, str(error))
        return problem


PATH = "chat/completions"
TEMPERATURE = 0
SEED = 0

Reader = Callable[[Mapping[str, Any], str], Mapping[str, Any]]
"""(reply of the service, id) -> what the check looks at; raises `Unreadable`."""


def read_verdict(reply: Mapping[str, Any], ident: str) -> Mapping[str, Any]:
    """The JSON object that the judge wrote."""
    return read_object(content(reply), ident)


@dataclass(frozen=True, kw_only=True)
class JudgeQuestion:
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


class ChatJudge(ServiceClient[JudgeQuestion]):
    """Asks one judge."""

    path = PATH

    def ask_all(self, column: str, asks: Sequence[JudgeQuestion]) -> list[Verdict | Problem]:
        """One verdict per question: see `ServiceClient.verdicts`."""
        return self.verdicts(column, asks)

    def check(self, question: JudgeQuestion, found: Mapping[str, Any]) -> Verdict:
        return question.check(found)

    def read(self, question: JudgeQuestion, key: str, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        return question.read(reply, prompts.ident_of(key))

    def key(self, question: JudgeQuestion) -> str:
        rest = {"model": self.client.endpoint.model, "body": self._options(question), "seed": SEED}
        return prompts.digest(question.template, question.values, [picture.digest for picture in question.pictures], rest)

    def body(self, question: JudgeQuestion, key: str, wrong: tuple[Mapping[str, Any], str] | None) -> dict[str, Any]:
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

    def _messages(self, ask: JudgeQuestion, key: str) -> list[dict[str, Any]]:
        system, user = prompts.render(ask.template, ask.values, key)
        content: Any = user
        if ask.pictures:
            parts = [part for picture in ask.pictures for part in ({"type": "text", "text": picture.label}, picture.part())]
            content = [*parts, {"type": "text", "text": user}]
        return [{"role": "system", "content": system}, {"role": "user", "content": content}]

    def _options(self, ask: JudgeQuestion) -> dict[str, Any]:
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
    complaint = f"That could not be read: {problem}. Reply again with the JSON object alone."
    return [{"role": "assistant", "content": prompts.clean(text[:2000])}, {"role": "user", "content": complaint}]


@dataclass(frozen=True, kw_only=True)
class Response:
    """What a reward model scores: a response to a question."""

    question: str
    response: str
    pictures: Sequence[Picture] = ()


class ScalarModel(ServiceClient[Response]):
    """Asks one service for numbers between `low` and `high`."""

    def __init__(self, client: Client, cache: VerdictCache | None, *, low: float, high: float):
        super().__init__(client, cache)
        self._check = score_check(low, high)

    def score_all(self, column: str, items: Sequence[Response]) -> list[float | Problem]:
        """One number per item, in order: see `ServiceClient.verdicts`."""
        return [found if isinstance(found, Problem) else found["score"] for found in self.verdicts(column, items)]

    def check(self, question: Response, found: Mapping[str, Any]) -> Verdict:
        return self._check(found)

    def read(self, question: Response, key: str, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        scores = reply.get("scores")
        if not isinstance(scores, list):
            raise Unreadable("envelope", "the reply has no list 'scores'")
        if len(scores) != 1:
            raise Unreadable("wrong_count", f"the reply has {len(scores)} scores for one input")
        if not isinstance(scores[0], dict) or scores[0].get("id") != ident_of(key):
            raise Unreadable("wrong_id", "the score does not carry the id of the input")
        return scores[0]

    def key(self, question: Response) -> str:
        whole = ["scalar", self.client.endpoint.model, question.question, question.response, [p.digest for p in question.pictures]]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()

    def body(self, question: Response, key: str, wrong: tuple[Mapping[str, Any], str] | None) -> dict[str, Any]:
        return self._request(ident_of(key), question)  # a model that gives numbers is not told what was wrong

    def canary(self) -> dict[str, Any]:
        return self._request("canary", Response(question="OK?", response="OK."))

    def _request(self, ident: str, item: Response) -> dict[str, Any]:
        images = [{"label": p.label, "png": base64.b64encode(p.png).decode()} for p in item.pictures]
        one = {"id": ident, "question": item.question, "response": item.response, "images": images}
        return {"model": self.client.endpoint.model, "inputs": [one]}
