"""What asking a judge and asking a reward model share: each thing is asked once, kept verdicts are used, unreadable replies asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from vlmrl.rewards.remote.cache import VerdictCache
from vlmrl.rewards.remote.client import Client
from vlmrl.rewards.remote.exchange import Failure
from vlmrl.rewards.remote.verdicts import Problem, Unreadable, Verdict

REASKS = 2
"""Times that a service is asked again after a reply that is no verdict."""

Q = TypeVar("Q")
"""A question."""


class Asker(Generic[Q]):
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
