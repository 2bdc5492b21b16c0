"""The cache of the reference engine (`rollout.engine_hf`) over a model with gated delta nets: beside keys and values, a state of each such
layer for every running answer.

A prompt is prefilled once, in a packed row with others. Its keys and values are shared by its answers, as in the reference engine
(`rollout.grid`); what its delta nets ended with is copied to each of them, for every answer goes on to change it. What an answer has there
does not grow with its length. Sessions of conversations read every prompt whole: what turns have in common is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vlmrl.extras.families import delta_net
from vlmrl.extras.families.delta_net import Carried
from vlmrl.policy.attention import Pair
from vlmrl.rollout.grid import DecodeGrid

FULL = "full_attention"


class DeltaGrid(DecodeGrid):
    """State of decoding. Layers of attention call `attend`, gated delta nets `step`."""

    def __init__(self, *, width: int, longest: int, device: torch.device, kinds: Sequence[str]):
        """`width`: most answers of one prompt. `longest`: most tokens of an answer. `kinds`: of the decoder's layers, as configs say."""
        super().__init__(width=width, longest=longest, device=device)
        self._place = {layer: place for place, layer in enumerate(n for n, kind in enumerate(kinds) if kind == FULL)}
        self._carried: dict[int, Carried] = {}
        """Layer -> a row for each answer that runs, in the grid's order."""

    def admit(self, slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: list[Pair]) -> None:
        """Add prompts behind those in the grid; arguments as those of `DecodeGrid.admit`, but that `layers` holds what a prompt ended with
        in the places of delta nets, a row for each prompt."""
        owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(self.device)
        for layer in range(len(layers)):
            if layer in self._place:
                continue
            new = Carried(*layers[layer]).select(owner)
            self._carried[layer] = Carried.joined([self._carried[layer], new]) if layer in self._carried else new
        own = [layers[layer] for layer in self._place]
        layers.clear()  # what is packed is not held beside all that is made of it
        super().admit(slots, counts, lengths, own)

    def finish(self, ended: Sequence[bool]) -> None:
        """Take rows out: one bool for each of the rows alive, in their order (prompts, then answers)."""
        super().finish(ended)
        left = torch.tensor([n for n, end in enumerate(ended) if not end], dtype=torch.int64, device=self.device)
        for layer, carried in self._carried.items():
            self._carried[layer] = carried.select(left)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend as `DecodeGrid.attend`; `layer` counts all layers of the decoder."""
        return super().attend(self._place[layer], query, key, value, scale)

    def step(self, layer: int, module: Any, hidden_1NH: Tensor) -> Tensor:
        """Run a delta net over the new token of every answer, and keep what it then has.

        Returns:
            [1, N, H]
        """
        out, self._carried[layer] = delta_net.step(module, hidden_1NH, self._carried[layer])
        return out
