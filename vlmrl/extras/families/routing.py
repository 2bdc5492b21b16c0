"""Routers of a mixture of experts: keep which experts each column took, and take the same ones again.

A router takes the k likeliest of its experts. Where two are nearly as likely, a rounding decides, and sampling and update round otherwise:
the same weights then compute something else. Rollout routing replay (R3, arXiv:2510.11370) keeps the experts that were taken while an
answer was sampled, and takes them again where its log-probs are computed for training. Only the choice is replayed. What the experts
count for is made of the router's own logits at the time, as the model's own code makes it of its own choice:

    g_i = exp(s_i) / sum over the replayed j of exp(s_j)        (softmax over all experts, cut to the replayed ones, made to sum to 1)

so gradients reach the router. A column without a kept choice (padding, the last token of an answer, which no engine reads) chooses itself.

Letters: N columns, L routers (layers that have one), k experts that a column takes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmrl.extras.families.recurrent import carried
from vlmrl.types import Prompt, digest

FREE = -1
"""In place of an expert: the column chooses itself."""
Rule = Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]
"""(router, what its own forward gave, experts [N, k]) -> what these count for, [N, k], as the router computes it of its own choice."""


def _softmax(router: Any, out: tuple[Tensor, ...], experts: Tensor) -> Tensor:
    """Qwen: probabilities of all experts, those that are taken made to sum to 1."""
    p = torch.softmax(out[0], -1, dtype=torch.float).gather(-1, experts)
    return (p / p.sum(-1, keepdim=True)).to(out[0].dtype)


def _sigmoid(router: Any, out: tuple[Tensor, ...], experts: Tensor) -> Tensor:
    """GLM: a sigmoid of each logit. Its bias and its groups of experts bear on the choice alone."""
    p = out[0].sigmoid().gather(-1, experts)
    if router.norm_topk_prob:
        p = p / (p.sum(-1, keepdim=True) + 1e-20)
    return p * router.routed_scaling_factor


def _scaled(router: Any, out: tuple[Tensor, ...], experts: Tensor) -> Tensor:
    """Gemma 4: its forward gives the probabilities themselves; a learnt factor of each expert comes behind the sum."""
    p = out[0].gather(-1, experts)
    return p / p.sum(-1, keepdim=True) * router.per_expert_scale[experts]


RULES: Mapping[str, Rule] = {
    "Qwen3VLMoeTextTopKRouter": _softmax,
    "Qwen3_5MoeTopKRouter": _softmax,
    "Glm4vMoeTextTopkRouter": _sigmoid,
    "Gemma4TextRouter": _scaled,
}
"""Class of a router -> how it weighs a choice. Their forwards give (logits or probabilities, weights [N, k], experts [N, k])."""


def routers_of(model: Any) -> list[Any]:
    """List the routers of a model, in the order of its layers."""
    return [module for module in model.modules() if "router" in type(module).__name__.lower()]


def refused(routers: Sequence[Any]) -> str:
    """Say why the choices of these routers cannot be replayed; nothing where they can."""
    if not routers:
        return "it has no routers"
    unknown = sorted({type(module).__name__ for module in routers} - set(RULES))
    return f"its routers are {', '.join(unknown)}; replayed are {', '.join(RULES)}" if unknown else ""


def refused_of(config: Any) -> str:
    """Say the same of a model by its config: its modules are made without weights."""
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        return refused(routers_of(AutoModelForImageTextToText.from_config(config)))


@dataclass
class Recording:
    """Keeps the experts that are taken."""

    kept: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def of(self, layer: int, out: tuple[Tensor, ...]) -> Tensor | None:
        """Keep what a router chose."""
        self.kept[layer] = out[2]
        return None

    def take(self) -> Tensor:
        """Give the choices of the forward pass that has just ended, [N, L, k] int64, rows of a batch one behind the other."""
        out = torch.stack([self.kept[layer] for layer in sorted(self.kept)], 1)
        self.kept.clear()
        return out


@dataclass(frozen=True)
class Replay:
    """Gives the experts to take."""

    experts_NLk: Tensor
    """int64, `FREE` where the column chooses itself."""
    flips: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Router -> columns whose own choice would have been another set of experts."""

    def of(self, layer: int, out: tuple[Tensor, ...]) -> Tensor:
        """Give the experts that a router takes, [N, k]."""
        given, own = self.experts_NLk[:, layer], out[2]
        kept = given != FREE
        if layer not in self.flips:  # layers that are computed again in the backward pass are counted once
            strange = (given[:, :, None] != own[:, None, :]).all(-1) & kept
            self.flips[layer] = strange.any(-1).sum()
        return torch.where(kept, given, own)


@dataclass
class Tally:
    """Counts calls of routers whose experts were replayed, and those among them that would have chosen others."""

    flips: list[Tensor] = field(default_factory=list[Tensor])
    calls: list[Tensor] = field(default_factory=list[Tensor])

    def share(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Give (flips, calls) under the name of the metric; nothing where nothing was replayed."""
        return {FLIPS: (torch.stack(self.flips).sum(), torch.stack(self.calls).sum())} if self.calls else {}


FLIPS = "sampling/router_flips"
_NOW: ContextVar[Recording | Replay | None] = ContextVar("vlmrl_experts", default=None)
_TALLY: ContextVar[Tally | None] = ContextVar("vlmrl_flips", default=None)


def install(model: Any) -> str:
    """Let the routers of a model keep and replay choices. They choose as they did wherever neither is asked for.

    Returns:
        Why this model's choices cannot be replayed; nothing where they can.
    """
    routers = routers_of(model)
    why = refused(routers)
    for layer, router in enumerate([] if why else routers):
        router.forward = _heeding(router, router.forward, layer, RULES[type(router).__name__])
    return why


def _heeding(router: Any, plain: Callable[..., Any], layer: int, rule: Rule) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        out, now = plain(*args, **kwargs), _NOW.get()
        experts = None if now is None else now.of(layer, out)
        return out if experts is None else (out[0], rule(router, out, experts), experts)

    return forward


@contextmanager
def recorded() -> Iterator[Recording]:
    """Context in which forward passes keep the experts that they take."""
    now = Recording()
    token = _NOW.set(now)
    try:
        yield now
    finally:
        _NOW.reset(token)


@contextmanager
def replayed(model: Any, experts_NLk: Tensor | None) -> Iterator[None]:
    """Context of one forward pass whose columns take these experts, also where layers are computed again; None: all choose themselves."""
    if experts_NLk is None:
        yield
        return
    now = Replay(experts_NLk)
    with carried(model, _NOW, now):
        yield
    tally = _TALLY.get()
    if tally is not None and now.flips:
        tally.flips += now.flips.values()
        tally.calls.append((experts_NLk[..., 0] != FREE).sum())


@contextmanager
def tallied() -> Iterator[Tally]:
    """Context that counts what the replays within it would have chosen themselves."""
    tally = Tally()
    token = _TALLY.set(tally)
    try:
        yield tally
    finally:
        _TALLY.reset(token)


def columns(parts: Sequence[tuple[Tensor | None, int]]) -> Tensor | None:
    """Lay kept choices along the columns of a forward pass.

    Args:
        parts: one behind the other, the choices of a part's first columns, [up to its columns, L, k], or None, and its columns.

    Returns:
        [N, L, k], `FREE` in the columns behind; None where no part has choices.
    """
    known = next((part for part, _ in parts if part is not None), None)
    if known is None:
        return None
    out = known.new_full((sum(count for _, count in parts), *known.shape[1:]), FREE)
    at = 0
    for part, count in parts:
        if part is not None:
            out[at : at + len(part)] = part
        at += count
    return out


def mark(ids: Sequence[int], media: Sequence[str] = ()) -> str:
    """Name what choices belong to: the ids of a prompt with the keys of its media, or the ids of an answer."""
    return digest([list(ids), list(media)])[:16]


def written(experts_NLk: Tensor, marked: str) -> str:
    """Write choices as text: mark, L, k, bytes of a number (two where there are more than 256 experts), and the numbers in base64."""
    _, layers, k = experts_NLk.shape
    values = experts_NLk.cpu().numpy()
    size = 2 if values.size and int(values.max()) > 255 else 1
    return f"{marked} {layers} {k} {size} {base64.b64encode(values.astype(f'<u{size}').tobytes()).decode()}"


def routes(prompt: Prompt, ids: Sequence[int], experts_NLk: Tensor) -> tuple[str, str]:
    """Write (those of a prompt's columns, those of its answer's) as text; the last token of an answer was never read."""
    before = written(experts_NLk[: len(prompt.ids)], mark(prompt.ids, [handle.key for handle in prompt.media]))
    return before, written(experts_NLk[len(prompt.ids) :], mark(ids))


def read(text: str, marked: str, count: int) -> Tensor | None:
    """Read what `written` wrote.

    Args:
        count: columns that there must be.

    Returns:
        [count, L, k] int64; None where the choices belong to something else: a prompt without its hint or its picture, another answer.

    Raises:
        ValueError: there are more or fewer of them.
    """
    of, layers, k, size, body = text.split(" ")
    if of != marked:
        return None
    values = np.frombuffer(base64.b64decode(body), f"<u{size}").astype(np.int64)
    return torch.from_numpy(values).view(count, int(layers), int(k))
