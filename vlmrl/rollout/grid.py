"""Keys and values of the rollouts that decode together: one copy of each prompt's, and a room for those of each of its answers.

Rooms begin with 64 tokens and are doubled, up to the longest answer that is allowed: together they never hold more than that, which is what
`vlmrl plan` counts. Whatever changes their size (growth, prompts that come or go) goes layer by layer, and a layer's old keys are gone
before the next layer's are made: the most that is alive is everything once, and one layer twice.

A token is written without a scatter. In deterministic mode, which is the default, CUDA has one way to write to places that a tensor names
(`index_put_`, and with it `x[a, :, g] = y`, `index_copy_` and `scatter_`): it sorts the places, and where those are not the leading
dimensions of a contiguous tensor it copies all of it, permuted, there and back. So rows are gathered into the grid's order, and while all
prompts have the same age their tokens go into one column, a plain copy. Prompts of different age are written by `index_copy_` into a view
with all places in front: as many numbers are sorted as there are places, and nothing is copied. Key heads stand before tokens, so that
the products of attention read the rooms as they are; heads behind tokens would be copied by each of them.

Letters: A prompts in the grid, G answers of a prompt (at most), P prompt tokens and T answer tokens (padded), N rollouts that decode now,
R query heads per key head (GQA), K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.policy.attention import Pair, grid_attention

GROW = 64
"""Answer tokens that there is room for at first."""


class DecodeGrid:
    """State of decoding. `attend` is called by every layer of the model, `advance` once per token."""

    def __init__(self, *, width: int, longest: int, device: torch.device):
        """`width`: most answers of one prompt. `longest`: most tokens of an answer."""
        self.width, self.longest = width, longest
        self.device = device
        self.slots: list[int] = []
        """The caller's number of each prompt in the grid."""
        self._prompt: list[Pair] = []
        """Per layer, [A, K, P, D]."""
        self._answer: list[Pair] = []
        """Per layer, [A, K, G, T, D]."""
        self._lengths: list[int] = []
        self._ages: list[int] = []
        self._alive_AG = np.zeros((0, width), dtype=np.bool_)
        self._moved = True
        """Whether rows or prompts have come or gone since the tensors below were made. What is decided here is decided on numbers of
        the host: asking the device would wait for it, in every token."""
        self._place_N = torch.zeros(0, dtype=torch.int64, device=device)
        """Place of each row."""
        self._row_AG: Tensor | None = None
        """A row for each place, its own where it has one; none: the rows are the places."""
        self._length_A = self._age_A = self._at_AKG = self._place_N
        self._mask = torch.zeros(0, device=device)
        self._seen = 0
        self._column: int | None = None
        """Where the new tokens go, when all prompts have the same age; else to the places `_at_AKG` of all columns."""

    @property
    def room(self) -> int:
        """Tokens that there is room for in each answer."""
        return self._answer[0][0].shape[3] if self._answer else min(GROW, self.longest)

    def admit(self, slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: list[Pair]) -> None:
        """Add prompts behind those in the grid.

        Args:
            slots: the caller's numbers.
            counts: answers of each.
            lengths: tokens of each.
            layers: per layer keys and values of the packed prompts, [1, K, sum of lengths, D]. Taken out one by one, so that what is
                packed is not held beside all that is made of it.
        """
        self.drop_finished()
        first, room = not self._prompt, self.room
        width = max([*lengths, *(k.shape[2] for k, _ in self._prompt[:1])])
        for i in range(len(layers)):
            new = [stacked(x, lengths, width) for x in layers.pop(0)]
            own = [(len(slots), k.shape[1], self.width, room, k.shape[3]) for k in new]  # [A, K, G, T, D]
            if first:
                self._prompt.append((new[0], new[1]))
                self._answer.append((new[0].new_zeros(own[0]), new[1].new_zeros(own[1])))
                continue
            k, v = self._prompt[i]
            self._prompt[i] = (torch.cat([_widen(k, width), new[0]]), torch.cat([_widen(v, width), new[1]]))
            k, v = self._answer[i]
            self._answer[i] = (_more(k, len(slots)), _more(v, len(slots)))  # as much room as those that run have grown to
        self.slots += slots
        self._lengths += lengths
        self._ages += [0] * len(slots)
        self._alive_AG = np.concatenate([self._alive_AG, np.arange(self.width)[None] < np.asarray(counts)[:, None]])
        self._moved = True

    def skip(self, tokens: int) -> None:
        """Let every answer be so many tokens long, of zeros (`GenerateCall.rehearse`)."""
        self._ages = [tokens] * len(self._ages)
        self._moved = True

    def finish(self, ended: Sequence[bool]) -> None:
        """Take rows out: one bool for each of the rows alive, in their order (prompts, then answers)."""
        # the n-th bool is of the n-th place that is alive
        self._alive_AG.reshape(-1)[np.flatnonzero(self._alive_AG)[np.asarray(ended, dtype=np.bool_)]] = False
        self._moved = True

    def advance(self) -> None:
        """Make ready for one more token of every row that is alive."""
        # a prompt whose answers have all ended ages until it is dropped: it must not ask for more room than an answer can
        if 2 * int(self._alive_AG.any(axis=1).sum()) <= len(self.slots) or max(self._ages) >= self.longest:
            self.drop_finished()
        self._seen = max(self._ages) + 1
        if self._seen > self.room:
            more = min(self.room, self.longest - self.room)
            _change(self._answer, lambda x: F.pad(x, (0, 0, 0, more)))
        if self._moved:
            alive = self._alive_AG.reshape(-1)
            # place -> row; a place that has ended gets the row of another, and nobody reads what comes of that
            rows = np.maximum(np.cumsum(alive) - 1, 0)
            self._row_AG = None if alive.all() else torch.from_numpy(rows).to(self.device)
            self._place_N = torch.from_numpy(np.flatnonzero(alive)).to(self.device)
            self._length_A, self._age_A = torch.tensor([self._lengths, self._ages], device=self.device)
            self._moved = False
        # all of one age: their new tokens are one column, which a plain copy writes
        self._column = self._seen - 1 if min(self._ages) == self._seen - 1 else None
        if self._column is None:
            self._at_AKG = places(self._answer[0][0], self._age_A)
        # [A, P + T], what no answer of a prompt may see: padding behind the prompt, and columns that they have not come to
        prompt = torch.arange(self._prompt[0][0].shape[2], device=self.device)[None] >= self._length_A[:, None]
        answer = torch.arange(self._seen, device=self.device)[None] > self._age_A[:, None]
        hidden = torch.cat([prompt, answer], dim=1)
        self._mask = torch.zeros(hidden.shape, device=self.device).masked_fill(hidden, float("-inf"))[:, None, None]
        self._ages = [age + 1 for age in self._ages]
        self._age_A = self._age_A + 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend from the new tokens: query [1, K*R, N, D], key and value [1, K, N, D]. Stores key and value.

        Returns:
            [1, N, K*R, D]
        """
        own = self._answer[layer]
        prompts, heads, width, _, size = own[0].shape
        for kept, x in zip(own, (key, value), strict=True):
            new = self._spread(x).view(prompts, width, heads, size).transpose(1, 2)  # [A, K, G, D]
            if self._column is not None:
                kept[:, :, :, self._column] = new
            else:
                kept.view(-1, size).index_copy_(0, self._at_AKG, new.reshape(-1, size))
        q = self._spread(query).view(prompts, width, heads, query.shape[1] // heads, size).transpose(1, 2)
        seen = own[0][:, :, :, : self._seen], own[1][:, :, :, : self._seen]
        rows = grid_attention(q, self._prompt[layer], seen, self._mask, scale)  # [A*G, K*R, D]
        return (rows if self._row_AG is None else rows.index_select(0, self._place_N))[None]

    def _spread(self, x: Tensor) -> Tensor:
        """[1, heads, N, D] -> [A*G, heads, D]. A place without a row gets one of another: nobody reads what comes of it."""
        x = x[0].transpose(0, 1)
        return x.contiguous() if self._row_AG is None else x.index_select(0, self._row_AG)

    def own(self, slot: int, k: int, tokens: int) -> list[Pair]:
        """Show the keys and values of the first tokens of an answer to the prompt with the caller's number.

        Returns:
            By layer, [1, K, tokens, D] each: views.
        """
        a = self.slots.index(slot)
        return [(keys[a, :, k, :tokens][None], values[a, :, k, :tokens][None]) for keys, values in self._answer]

    def drop_finished(self) -> None:
        """Remove prompts without a row alive."""
        keep = np.flatnonzero(self._alive_AG.any(axis=1))
        if len(keep) == len(self.slots):
            return
        self.slots, self._lengths, self._ages = ([x[i] for i in keep] for x in (self.slots, self._lengths, self._ages))
        kept = torch.from_numpy(keep).to(self.device)
        for layers in (self._prompt, self._answer):
            if len(keep):
                _change(layers, lambda x: x.index_select(0, kept))
            else:
                layers.clear()
        self._alive_AG = self._alive_AG[keep]
        self._moved = True


def stacked(x: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    """Unpack [1, K, sum of lengths, D] into a row for each prompt.

    Returns:
        [A, K, width, D], padded with zeros behind.
    """
    out = x.new_zeros(len(lengths), x.shape[1], width, x.shape[3])
    at = 0
    for i, n in enumerate(lengths):
        out[i, :, :n] = x[0, :, at : at + n]
        at += n
    return out


def places(kept: Tensor, at_A: Tensor) -> Tensor:
    """Find where the column `at_A` of each prompt's answers stands in keys or values [A, K, G, T, D] whose places are one dimension.

    Returns:
        [A*K*G] int64.
    """
    prompts, heads, width, room, _ = kept.shape
    # the tensor read as [A * K * G * T, D]: where each room begins, and the column in it
    first = torch.arange(prompts * heads * width, device=kept.device).view(prompts, heads * width) * room
    return (first + at_A[:, None]).view(-1)


def _change(layers: list[Pair], change: Callable[[Tensor], Tensor]) -> None:
    """Change keys and values in place, layer by layer."""
    for i in range(len(layers)):
        layers[i] = (change(layers[i][0]), change(layers[i][1]))


def _more(x: Tensor, prompts: int) -> Tensor:
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, prompts))


def _widen(x: Tensor, width: int) -> Tensor:
    return x if x.shape[2] >= width else F.pad(x, (0, 0, 0, width - x.shape[2]))
