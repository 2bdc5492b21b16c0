"""Keys and values that are kept of conversations from one turn to the next, and attention of what is new to them.

A turn leaves the keys and values of its prompt, and those of its answer but for the last token, which was drawn and never read. The next
turn reads that token and the observation behind it. Pasts are found by comparing ids and media, as chains are in training
(`agents.past`), so a past that is not the beginning of a prompt is never used; neither is one of other weights. Turns that share their
past share its memory, and conversations that have not forked yet hold the same past each: it outlives the one that was asked.

Letters: K key heads, D head size, N new tokens of all rows, P tokens of a row with its past, n those that are new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.extras.agents.past import behind, continues
from vlmrl.policy.attention import Pair
from vlmrl.policy.pack import Row
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout


@dataclass(frozen=True, eq=False)
class CacheNode:
    """Tokens that were read together, behind those of `parent`."""

    parent: CacheNode | None
    tokens: int
    """With those of the parents."""
    layers: tuple[Pair, ...]
    """Keys and values of its own tokens, [K, own, D]."""

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for pair in self.layers for x in pair)

    def path(self) -> list[CacheNode]:
        """From the first to this one."""
        out: list[CacheNode] = []
        node: CacheNode | None = self
        while node is not None:
            out.append(node)
            node = node.parent
        return out[::-1]


@dataclass(frozen=True)
class Past:
    """What is kept of a conversation: a prompt and the read tokens of its answer."""

    prompt: Prompt
    response: tuple[int, ...]
    node: CacheNode
    version: int
    """Of the weights that read it."""

    @property
    def tokens(self) -> int:
        """Of the prompt and the answer together, as far as they were read."""
        return self.node.tokens

    def begins(self, prompt: Prompt) -> bool:
        """Whether a prompt begins with it, and has something behind it."""
        nothing = Row(index=0, group=0, prompt=prompt, response=())
        before = Row(index=0, group=0, prompt=self.prompt, response=self.response)
        return self.tokens < len(prompt.ids) and continues(nothing, before)

    def behind(self, prompt: Prompt) -> Prompt:
        """What a prompt that begins with it has behind it, as a prompt of its own columns."""
        return behind(prompt, self.tokens, len(self.prompt.media))


class Kept:
    """The pasts of conversations, by their numbers. What does not fit into the budget is not kept, and is read again."""

    def __init__(self, budget: int):
        """`budget`: bytes of keys and values; those that running answers use are not counted."""
        self.budget = budget
        self.bytes = 0
        """Of all keys and values that are kept, shared ones once."""
        self._pasts: dict[int, Past] = {}
        self._users: Counter[CacheNode] = Counter()

    def __len__(self) -> int:
        return len(self._pasts)

    def past(self, request: Request, version: int) -> Past | None:
        """The longest past that a request's prompt begins with, of these weights. Pasts of its conversations that do not fit are
        forgotten: no later prompt would begin with them."""
        found: Past | None = None
        for number in request.talkers():
            past = self._pasts.get(number)
            if past is None:
                continue
            if past.version != version or not past.begins(request.prompt):
                self.forget([number])
            elif found is None or past.tokens > found.tokens:
                found = past
        return found

    def extension(self, pasts: Sequence[Past | None], new: Sequence[int]) -> Extension:
        """How the model reads so many new tokens behind each of these pasts."""
        return Extension([None if past is None else past.node for past in pasts], new)

    def keep_prompt(self, request: Request, past: Past | None, new: Sequence[Pair], own: tuple[int, int], version: int) -> None:
        """Keep what was read of a prompt that may go on, once for all its conversations. `new`: keys and values of several prompts,
        packed, of which the columns `own` are this one's."""
        start, end = own
        if request.goes_on and not request.prompt.owners and self.bytes + size_of(new, end - start) <= self.budget:
            node = CacheNode(None if past is None else past.node, len(request.prompt.ids), own_part(new, start, end))
            for number in request.talkers():
                self.keep(number, Past(request.prompt, (), node, version))

    def keep_answer(self, request: Request, k: int, ids: tuple[int, ...], layers: Sequence[Pair], version: int) -> None:
        """Keep what was read of the answer of a request's conversation in place `k`: these ids, with keys and values [1, K, own, D]."""
        past = self._pasts.get(request.conversations[k])
        if past is None or past.prompt is not request.prompt or self.bytes + size_of(layers, len(ids)) > self.budget:
            return  # there was no room for its prompt, or there is none for it
        node = CacheNode(past.node, past.tokens + len(ids), own_part(layers, 0, len(ids)))
        for number in request.talkers(k):
            self.keep(number, Past(request.prompt, ids, node, version))

    def keep(self, number: int, past: Past) -> None:
        """Keep a past in place of the one before it."""
        for node in past.node.path():
            self.bytes += 0 if self._users[node] else node.bytes
            self._users[node] += 1
        self.forget([number])
        self._pasts[number] = past

    def forget(self, numbers: Iterable[int]) -> None:
        """Free what is kept of these conversations and of no other."""
        for number in numbers:
            past = self._pasts.pop(number, None)
            for node in () if past is None else past.node.path():
                self._users[node] -= 1
                if not self._users[node]:
                    del self._users[node]
                    self.bytes -= node.bytes

    def clear(self) -> None:
        self.forget(list(self._pasts))


@dataclass(frozen=True)
class KeptSession:
    """Conversations with an engine in place, as `protocols.MultiTurnSession`. Pasts of other weights are never used."""

    answer: Callable[..., list[list[Rollout]]]
    """The engine's `generate`."""
    kept: Kept

    def generate(self, requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        """The next turns; what is kept of their past is not read again."""
        return self.answer(requests, settings, kept=self.kept)

    def forget(self, conversations: Iterable[int]) -> None:
        """These conversations are over."""
        self.kept.forget(conversations)


@contextmanager
def session_of(engine: HFEngine) -> Iterator[KeptSession]:
    """Turns of conversations with the reference engine that keep the keys and values of their past; all is freed at the end."""
    kept = Kept(engine.kept_bytes)
    try:
        yield KeptSession(engine.generate, kept)
    finally:
        kept.clear()


class Extension:
    """New tokens of several rows behind their pasts. `attend` is called by every layer of the model, in order."""

    def __init__(self, pasts: Sequence[CacheNode | None], new: Sequence[int]):
        """`new`: tokens of each row that are new; None: nothing stands before them."""
        self.pasts, self.new = pasts, list(new)
        self.record: list[Pair] = []
        """Per layer keys and values of whole rows, packed: [1, K, sum of P, D]."""
        self.own: list[Pair] = []
        """The same of what is new, [1, K, N, D]."""
        self._masks: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [1, K*R, N, D], key and value [1, K, N, D] -> [1, N, K*R, D]: a token sees its row's past, and what is new up to itself."""
        assert layer == len(self.own), "layers come in order"
        if not self._masks:
            self._masks = [
                _visible(0 if past is None else past.tokens, n, query.device) for past, n in zip(self.pasts, self.new, strict=True)
            ]
        whole = tuple(_whole(x, self.pasts, self.new, layer, place) for place, x in enumerate((key, value)))
        shared = query.shape[1] // key.shape[1]
        outs = [
            F.scaled_dot_product_attention(q, *(x.repeat_interleave(shared, dim=1) for x in (k, v)), attn_mask=mask, scale=scale)
            for q, k, v, mask in zip(query.split(self.new, dim=2), *whole, self._masks, strict=True)
        ]
        self.record.append((torch.cat(whole[0], dim=2), torch.cat(whole[1], dim=2)))
        self.own.append((key, value))
        return torch.cat(outs, dim=2).transpose(1, 2).contiguous()


def _whole(x: Tensor, pasts: Sequence[CacheNode | None], new: Sequence[int], layer: int, place: int) -> list[Tensor]:
    """Keys (place 0) or values (1) of each row with its past, [1, K, P, D]."""
    own = x.split(list(new), dim=2)
    paths = [[] if past is None else past.path() for past in pasts]
    return [torch.cat([*(node.layers[layer][place][None] for node in path), one], dim=2) for path, one in zip(paths, own, strict=True)]


def _visible(past: int, new: int, device: torch.device) -> Tensor:
    """Which keys of [past; new] each new token may see, bool [new, past + new]."""
    q, k = torch.arange(new, device=device), torch.arange(past + new, device=device)
    return k[None] <= q[:, None] + past


def own_part(layers: Sequence[Pair], start: int, end: int) -> tuple[Pair, ...]:
    """Copies of these columns of packed keys and values [1, K, N, D], [K, end - start, D]: a view would hold all N."""
    return tuple((k[0, :, start:end].clone(), v[0, :, start:end].clone()) for k, v in layers)


def size_of(layers: Sequence[Pair], tokens: int) -> int:
    """Bytes of so many tokens of such keys and values."""
    return sum(x.shape[-3] * x.shape[-1] * x.element_size() * tokens for pair in layers for x in pair)
