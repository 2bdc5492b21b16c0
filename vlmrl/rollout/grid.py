"""The key-value cache of the reference engine: each prompt's keys and values once, those of its answers beside them.

The answers of a prompt attend to one copy of its keys and values, in one matrix product for all of them; nothing is expanded. Rows
leave when they end, and the place of a prompt whose answers are done goes to the next prompt.

Letters: A prompts in the grid, G answers of a prompt (at most), P prompt tokens and T answer tokens (padded), N rows that are alive,
R query heads per key head (GQA), K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GROW = 64
"""Answer tokens that room is made for at a time."""


class DecodeGrid:
    """State of decoding. `attend` is called by every layer of the model, `advance` once per token."""

    def __init__(self, *, width: int, device: torch.device):
        """`width`: most answers of one prompt."""
        self.width = width
        self.device = device
        self.slots: list[int] = []
        """The caller's number of each prompt in the grid."""
        self._prompt: list[tuple[Tensor, Tensor]] = []
        self._answer: list[tuple[Tensor, Tensor]] = []
        self._length_A = torch.zeros(0, dtype=torch.int64, device=device)
        self._age_A = torch.zeros(0, dtype=torch.int64, device=device)
        self.alive_AG = torch.zeros((0, width), dtype=torch.bool, device=device)
        self._place_N = torch.zeros(0, dtype=torch.int64, device=device)
        self._at_N = self._place_N
        self._mask = torch.zeros(0, device=device)
        self._seen = 0
        self._together: int | None = None
        """Where the new token goes, when all places are taken by rows of one age."""

    @property
    def rows(self) -> int:
        """Rows alive."""
        return int(self.alive_AG.sum())

    def admit(self, slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add prompts behind those in the grid.

        Args:
            slots: the caller's numbers.
            counts: answers of each.
            lengths: tokens of each.
            layers: per layer keys and values of the packed prompts, [1, K, sum of lengths, D].
        """
        self._drop_finished()
        if not self.slots:
            self._prompt, self._answer = [], []
        width = max([*lengths, *(k.shape[2] for k, _ in self._prompt[:1])])
        new = [tuple(_stack(x, lengths, width) for x in pair) for pair in layers]
        room = self._answer[0][0].shape[3] if self._answer else GROW
        for i, (k, v) in enumerate(new):
            shape = (len(slots), k.shape[1], self.width, room, k.shape[3])
            own = (k.new_zeros(shape), v.new_zeros(shape))
            if i < len(self._prompt):
                old_k, old_v = (_widen(x, width) for x in self._prompt[i])
                self._prompt[i] = (torch.cat([old_k, k]), torch.cat([old_v, v]))
                self._answer[i] = (torch.cat([self._answer[i][0], own[0]]), torch.cat([self._answer[i][1], own[1]]))
            else:
                self._prompt.append((k, v))
                self._answer.append(own)
        self.slots += slots
        self._length_A = torch.cat([self._length_A, torch.tensor(lengths, device=self.device)])
        self._age_A = torch.cat([self._age_A, torch.zeros(len(slots), dtype=torch.int64, device=self.device)])
        alive = torch.arange(self.width, device=self.device)[None] < torch.tensor(counts, device=self.device)[:, None]
        self.alive_AG = torch.cat([self.alive_AG, alive])

    def finish(self, ended_N: Tensor) -> None:
        """Take rows out: bool [N] over the rows alive, in their order (prompts, then answers)."""
        where = self.alive_AG.flatten().nonzero(as_tuple=True)[0][ended_N]
        self.alive_AG.view(-1)[where] = False

    def advance(self) -> None:
        """Make ready for one more token of every row that is alive."""
        if 2 * int(self.alive_AG.any(dim=1).sum()) <= len(self.slots):
            self._drop_finished()
        self._seen = int(self._age_A.max()) + 1
        if self._seen > self._answer[0][0].shape[3]:
            self._answer = [(_longer(k, GROW), _longer(v, GROW)) for k, v in self._answer]
        self._place_N = self.alive_AG.flatten().nonzero(as_tuple=True)[0]
        self._at_N = self._age_A[self._place_N // self.width]
        same = len(self._place_N) == self.alive_AG.numel() and bool((self._age_A == self._age_A[0]).all())
        self._together = self._seen - 1 if same else None
        prompt = torch.arange(self._prompt[0][0].shape[2], device=self.device)[None] >= self._length_A[:, None]
        answer = torch.arange(self._seen, device=self.device)[None] > self._age_A[:, None]
        hidden = torch.cat([prompt, answer], dim=1)
        self._mask = torch.zeros(hidden.shape, device=self.device).masked_fill(hidden, float("-inf"))[:, None, None]
        self._age_A = self._age_A + 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of the new tokens: query [1, K*R, N, D], key and value [1, K, N, D] -> [1, N, K*R, D]. Stores key and value."""
        own_k, own_v = self._answer[layer]
        prompt_k, prompt_v = self._prompt[layer]
        prompts, heads, width, _, size = own_k.shape
        shared = query.shape[1] // heads
        q_N, k_N, v_N = (x[0].transpose(0, 1) for x in (query, key, value))
        if self._together is not None:
            # every place is taken by a row of the same age: plain views instead of index arithmetic
            own_k[:, :, :, self._together] = k_N.view(prompts, width, heads, size).transpose(1, 2)
            own_v[:, :, :, self._together] = v_N.view(prompts, width, heads, size).transpose(1, 2)
            grid = q_N.contiguous()
        else:
            a, g = self._place_N // width, self._place_N % width
            own_k[a, :, g, self._at_N] = k_N
            own_v[a, :, g, self._at_N] = v_N
            grid = query.new_zeros(prompts * width, query.shape[1], size)
            grid[self._place_N] = q_N
        q = grid.view(prompts, width, heads, shared, size).transpose(1, 2)
        flat = q.reshape(prompts, heads, width * shared, size)
        to_prompt = flat @ prompt_k.transpose(2, 3)
        to_answer = (q @ own_k[:, :, :, : self._seen].transpose(3, 4)).flatten(2, 3)
        score = torch.cat([to_prompt, to_answer], dim=3).float() * scale + self._mask
        p = score.softmax(dim=3).to(query.dtype)
        count = prompt_k.shape[2]
        out = (p[..., :count] @ prompt_v).view(prompts, heads, width, shared, size)
        out = out + p[..., count:].reshape(prompts, heads, width, shared, self._seen) @ own_v[:, :, :, : self._seen]
        rows = out.transpose(1, 2).reshape(prompts * width, query.shape[1], size)
        return (rows if self._together is not None else rows[self._place_N])[None]

    def _drop_finished(self) -> None:
        """Remove prompts without a row alive."""
        keep = self.alive_AG.any(dim=1).nonzero(as_tuple=True)[0]
        if len(keep) == len(self.slots):
            return
        self.slots = [self.slots[i] for i in keep.tolist()]
        self._prompt = [(k[keep], v[keep]) for k, v in self._prompt]
        self._answer = [(k[keep], v[keep]) for k, v in self._answer]
        self._length_A, self._age_A, self.alive_AG = self._length_A[keep], self._age_A[keep], self.alive_AG[keep]


def _stack(x: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    """Packed [1, K, sum of lengths, D] -> [A, K, width, D], padded with zeros behind."""
    out = x.new_zeros(len(lengths), x.shape[1], width, x.shape[3])
    at = 0
    for i, n in enumerate(lengths):
        out[i, :, :n] = x[0, :, at : at + n]
        at += n
    return out


def _widen(x: Tensor, width: int) -> Tensor:
    return x if x.shape[2] >= width else torch.nn.functional.pad(x, (0, 0, 0, width - x.shape[2]))


def _longer(x: Tensor, tokens: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, tokens))
