"""Decoding with any vision-language model: a prompt once, its cache forked to as many answers, rows that are done leave.

Letters: G answers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vlmrl.families import generic
from vlmrl.families.generic import Encoded, Features
from vlmrl.policy import cache as caches
from vlmrl.policy import layouts
from vlmrl.policy.layouts import Subject

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits [rows, V], answers that these rows are [rows], number of the token) -> ids [rows]."""


@torch.no_grad()
def answers(
    subject: Subject, prompt: Encoded, media: Sequence[Features], *, count: int, choose: Choose, ends: Sequence[int], longest: int
) -> list[list[int]]:
    """`count` answers to one prompt, each up to and with one of `ends` or `longest` tokens.

    Raises:
        ValueError: the model keeps no cache.
    """
    out: list[list[int]] = [[] for _ in range(count)]
    logits_GV, cache = layouts.prefilled(subject, prompt, media)
    caches.fork(cache, count)
    logits_GV = logits_GV.expand(count, -1)
    alive = torch.arange(count)
    own = generic.positions(subject.core, prompt)
    last = torch.tensor(sorted(ends), dtype=torch.int64)
    for number in range(longest):
        ids = choose(logits_GV, alive, number)
        for row, token in zip(alive.tolist(), ids.tolist(), strict=True):
            out[row].append(token)
        going = ~torch.isin(ids, last)
        if number == longest - 1 or not bool(going.any()):
            break
        if not bool(going.all()):
            caches.select(cache, going.nonzero()[:, 0])
            ids, alive = ids[going], alive[going]
        place = layouts.answer_positions(own, prompt.length, number + 1)[..., -1:]
        rows = range(len(ids))
        logits_GV, _ = layouts.logits(
            subject,
            rows,
            [0] * len(ids),
            input_ids=ids[:, None],
            position_ids=torch.stack([place] * len(ids), -2),
            past_key_values=cache,
            use_cache=True,
        )
    return out


def greedy(forbidden: Sequence[int] = ()) -> Choose:
    """The likeliest token that is not forbidden."""
    never = torch.tensor(list(forbidden), dtype=torch.int64)

    def choose(logits_GV: Tensor, rows: Tensor, number: int) -> Tensor:
        return logits_GV.index_fill(1, never, -torch.inf).argmax(-1)

    return choose


def drawn(seed: int, forbidden: Sequence[int] = (), temperature: float = 1.0) -> Choose:
    """A token by its probability; each answer and place has a generator of its own, whatever rows are left."""
    never = torch.tensor(list(forbidden), dtype=torch.int64)

    def choose(logits_GV: Tensor, rows: Tensor, number: int) -> Tensor:
        p_GV = torch.softmax(logits_GV.index_fill(1, never, -torch.inf).double() / temperature, -1)
        out: list[Tensor] = []
        for p_V, row in zip(p_GV, rows.tolist(), strict=True):
            generator = torch.Generator().manual_seed((seed * 1_000_003 + row) * 1_000_003 + number)
            out.append(torch.multinomial(p_V, 1, generator=generator))
        return torch.cat(out)

    return choose
