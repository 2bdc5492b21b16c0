"""Reward models behind a plain endpoint: `{"model", "inputs": [{"id", "question", "response", "images"}]}` in,
`{"scores": [{"id", "score"}, ...]}` out, one input per request."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.rewards.remote.asking import Asker
from vlmrl.rewards.remote.cache import VerdictCache
from vlmrl.rewards.remote.client import Client
from vlmrl.rewards.remote.pictures import Picture
from vlmrl.rewards.remote.prompts import ident_of
from vlmrl.rewards.remote.verdicts import Problem, Unreadable, Verdict, score_check


@dataclass(frozen=True, kw_only=True)
class Item:
    """What is to be scored."""

    question: str
    response: str
    pictures: Sequence[Picture] = ()


class ScalarModel(Asker[Item]):
    """Asks one service for numbers between `low` and `high`."""

    def __init__(self, client: Client, cache: VerdictCache | None, *, low: float, high: float):
        super().__init__(client, cache)
        self._check = score_check(low, high)

    def score_all(self, column: str, items: Sequence[Item]) -> list[float | Problem]:
        """One number per item, in order: see `Asker.verdicts`."""
        return [found if isinstance(found, Problem) else found["score"] for found in self.verdicts(column, items)]

    def check(self, question: Item, found: Mapping[str, Any]) -> Verdict:
        return self._check(found)

    def read(self, question: Item, key: str, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        scores = reply.get("scores")
        if not isinstance(scores, list):
            raise Unreadable("envelope", "the reply has no list 'scores'")
        if len(scores) != 1:
            raise Unreadable("wrong_count", f"the reply has {len(scores)} scores for one input")
        if not isinstance(scores[0], dict) or scores[0].get("id") != ident_of(key):
            raise Unreadable("wrong_id", "the score does not carry the id of the input")
        return scores[0]

    def key(self, question: Item) -> str:
        whole = ["scalar", self.client.endpoint.model, question.question, question.response, [p.digest for p in question.pictures]]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()

    def body(self, question: Item, key: str, wrong: tuple[Mapping[str, Any], str] | None) -> dict[str, Any]:
        return self._request(ident_of(key), question)  # a model that gives numbers is not told what was wrong

    def canary(self) -> dict[str, Any]:
        return self._request("canary", Item(question="OK?", response="OK."))

    def _request(self, ident: str, item: Item) -> dict[str, Any]:
        images = [{"label": p.label, "png": base64.b64encode(p.png).decode()} for p in item.pictures]
        one = {"id": ident, "question": item.question, "response": item.response, "images": images}
        return {"model": self.client.endpoint.model, "inputs": [one]}
