"""Masks of packed rows for any model: its own mask of one row, asked for and then cut by ownership.

A model makes its masks through transformers' mask interface. `own_masks` runs it on one row (a prompt with its longest answer) up to the
first layer of its decoder and keeps what it made, in the order in which it was made: full, sliding, chunked, with pictures that see
themselves, whatever it is. For packed columns i, j with row positions r and owners o (0 is the prompt)

    allow[i, j] = M[r_i, r_j] and (o_j == 0 or o_j == o_i)        in the same group, else False

which holds for every family because a mask depends on places in the row and on the prompt's tokens only. Groups stand on a diagonal, each
with the mask of its own row. While a packed row runs, these are given where the model asks for masks, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlmrl.policy.windows import ordered

NAME = "vlmrl_own_masks"
"""Of the attention implementation: torch's own attention, with masks that can be kept and given."""


@dataclass(frozen=True)
class PackedGroup:
    """Where a prompt and its answers stand in a packed row: prompt, answer, answer, ..."""

    start: int
    prompt: int
    """Columns of the prompt."""
    answers: tuple[int, ...]
    """Columns of each answer."""

    @property
    def columns(self) -> int:
        """Of all of it."""
        return self.prompt + sum(self.answers)


class Taken(Exception):
    """All masks of a row are there; the rest of the forward pass is not needed."""


@dataclass
class Masks:
    """What the mask function does while a row runs: give these, or keep what is made."""

    given: Sequence[Tensor] | None = None
    """bool [N, N] each, in the order in which the model asks."""
    kept: list[Tensor] = field(default_factory=list)
    asked: int = 0


_NOW: ContextVar[Masks | None] = ContextVar("vlmrl_masks", default=None)


def install(model: Any) -> None:
    """Route the language model's attention and masks through here. Its own masks are used wherever no packed row runs."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    AttentionInterface.register(NAME, _attention(ALL_ATTENTION_FUNCTIONS["sdpa"]))
    AttentionMaskInterface.register(NAME, _mask)
    model.set_attn_implementation({"text_config": NAME})


def _attention(plain: Callable[..., Any]) -> Callable[..., Any]:
    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return ordered(lambda q, k, v: plain(module, q, k, v, *args, **kwargs), query, key, value)

    return attend


def _mask(*args: Any, **kwargs: Any) -> Any:
    """transformers' mask interface: the boolean mask [B, 1, queries, keys], or None where attention needs none."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    now = _NOW.get()
    if now is not None and now.given is not None:
        now.asked += 1
        if now.asked > len(now.given):
            raise RuntimeError(f"the model asks for more than the {len(now.given)} masks that it made of a single row")
        return now.given[now.asked - 1][None, None]
    make = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    if now is None:
        return make(*args, **kwargs)
    kwargs["allow_is_causal_skip"] = False
    made = make(*args, **kwargs)
    now.kept.append(made[0, 0])
    return made


def own_masks(run: Callable[[], Any], first: torch.nn.Module) -> list[Tensor]:
    """Keep the masks that a model makes while `run` computes one row [1, S], up to the decoder's `first` layer.

    Returns:
        [S, S] bool each, in the order in which they are made.

    Raises:
        RuntimeError: no mask was made in front of that layer.
    """

    def taken(*_: Any) -> None:
        raise Taken

    now = Masks()
    token = _NOW.set(now)
    # in front of all other hooks: where weights lie in shards, the layer's own would ask the other ranks for them
    hook = first.register_forward_pre_hook(taken, prepend=True)
    try:
        with torch.no_grad():
            run()
    except Taken:
        if now.kept:
            return now.kept
    finally:
        hook.remove()
        _NOW.reset(token)
    raise RuntimeError("the model makes no mask through transformers' mask interface in front of its first layer")


def giving(masks: Sequence[Tensor], run: Callable[[], Any]) -> Any:
    """Call `run`, in which the model gets these masks where it asks for its own.

    Raises:
        RuntimeError: it asked for fewer or more masks than these.
    """
    now = Masks(given=masks)
    token = _NOW.set(now)
    try:
        out = run()
    finally:
        _NOW.reset(token)
    if now.asked != len(masks):
        raise RuntimeError(f"the model asked for {now.asked} masks of a packed row and for {len(masks)} of a single one")
    return out


def places(group: PackedGroup) -> tuple[Tensor, Tensor]:
    """List the row positions and owners of a group's columns. Owner 0 is the prompt; answers begin behind it, each anew.

    Returns:
        (row positions, owners), int64 [columns] each.
    """
    row = [*range(group.prompt), *(group.prompt + j for n in group.answers for j in range(n))]
    owner = [0] * group.prompt + [1 + i for i, n in enumerate(group.answers) for _ in range(n)]
    return torch.tensor(row), torch.tensor(owner)


def owned(row: Tensor, positions: Tensor, owners: Tensor) -> Tensor:
    """Cut the mask of a group out of that of its longest row.

    Returns:
        [columns, columns] bool.
    """
    visible = (owners[None, :] == 0) | (owners[None, :] == owners[:, None])
    return row[positions[:, None], positions[None, :]] & visible.to(row.device)


def packed(own: Sequence[Sequence[Tensor]], groups: Sequence[PackedGroup]) -> list[Tensor]:
    """Put the masks of a packed row together. `own`: for each group the masks of its row, all in the same order.

    Returns:
        [N, N] bool each.
    """
    size = sum(group.columns for group in groups)
    out: list[Tensor] = []
    for kind in zip(*own, strict=True):
        whole = torch.zeros(size, size, dtype=torch.bool, device=kind[0].device)
        for row, group in zip(kind, groups, strict=True):
            end = group.start + group.columns
            whole[group.start : end, group.start : end] = owned(row, *places(group))
        out.append(whole)
    return out
