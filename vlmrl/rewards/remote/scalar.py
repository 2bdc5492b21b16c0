"""Reward models behind a plain endpoint: `{"model", "inputs": [{"id", "question", "response", "images"}]}` in,
`{"scores": [{"id", "score"}, ...]}` out, one input per request."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.rewards.remote.cache import VerdictCache
from vlmrl.rewards.remote.client import Client
from vlmrl.rewards.remote.exchange import Failure
from vlmrl.rewards.remote.pictures import Picture
from vlmrl.rewards.remote.prompts import ident_of
from vlmrl.rewards.remote.verdicts import Problem, Unreadable, finite

REASKS = 2


@dataclass(frozen=True, kw_only=True)
class Item:
    """What is to be scored."""

    question: str
    response: str
    pictures: Sequence[Picture] = ()


class ScalarModel:
    """Asks one service for numbers between `low` and `high`."""

    def __init__(self, client: Client, cache: VerdictCache | None, *, low: float, high: float):
        self.client = client
        self._cache = cache
        self._low, self._high = low, high

    def score_all(self, column: str, items: Sequence[Item]) -> list[float | Problem]:
        """One number per item, in order; equal items are asked once.

        Raises:
            RemoteError, Preempted: as `Client.send`.
            StorageError: the cache cannot be written.
        """
        keys = [self._key(item) for item in items]
        todo = dict(zip(keys, items, strict=True))
        found = dict(zip(todo, self.client.map(lambda pair: self._one(*pair), list(todo.items())), strict=True))
        out = [found[key] for key in keys]
        for score in out:
            if isinstance(score, Problem):
                self.client.meters.unjudged(column, score.reason)
        return out

    def _one(self, key: str, item: Item) -> float | Problem:
        kept = None if self._cache is None else self._cache.get(key)
        if kept is not None:
            try:
                score = finite(kept.get("score"), "score", self._low, self._high)
                self.client.meters.add("judge/cache_hits")
                return score
            except Unreadable:  # kept under other bounds: ask
                pass
        ident = ident_of(key)
        problem = Problem(reason="unasked", detail="")
        for turn in range(REASKS + 1):
            if turn:
                self.client.meters.add("judge/reasks")
            reply = self.client.send(
                "", self._body(ident, item), name=key, canary=self._body("canary", Item(question="OK?", response="OK."))
            )
            if isinstance(reply, Failure):
                return Problem(reason=reply.reason, detail=reply.detail)
            try:
                score = self._read(reply, ident)
            except Unreadable as error:
                problem = Problem(reason=error.reason, detail=str(error))
                continue
            if self._cache is not None:
                self._cache.put(key, {"score": score})
            return score
        return problem

    def _read(self, reply: Mapping[str, Any], ident: str) -> float:
        scores = reply.get("scores")
        if not isinstance(scores, list):
            raise Unreadable("envelope", "the reply has no list 'scores'")
        if len(scores) != 1:
            raise Unreadable("wrong_count", f"the reply has {len(scores)} scores for one input")
        if not isinstance(scores[0], dict) or scores[0].get("id") != ident:
            raise Unreadable("wrong_id", "the score does not carry the id of the input")
        return finite(scores[0].get("score"), "score", self._low, self._high)

    def _body(self, ident: str, item: Item) -> dict[str, Any]:
        images = [{"label": p.label, "png": base64.b64encode(p.png).decode()} for p in item.pictures]
        one = {"id": ident, "question": item.question, "response": item.response, "images": images}
        return {"model": self.client.endpoint.model, "inputs": [one]}

    def _key(self, item: Item) -> str:
        whole = ["scalar", self.client.endpoint.model, item.question, item.response, [p.digest for p in item.pictures]]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()
