"""The policy's likeliest ids at each token of a step's answers, what a teacher says of them, and the divergence that is made of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlmrl.extras.distill.chosen import chosen_logprobs, chosen_reverse_kl, top_ids
from vlmrl.extras.distill.divergence import Outputs
from vlmrl.policy.pack import Row, response_mask, to_device
from vlmrl.policy.token_stats import HeadStat

CHOSEN = "chosen"
"""Name of the quantities under which passes choose ids and take log-probs of them; their values are 0."""


@dataclass(kw_only=True)
class Chosen:
    """What is kept of a step, on the CPU, by the index of a row."""

    k: int
    ids: int
    """Of the tokenizer that policy and teacher share."""
    of_row: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Ids, int64 [T, k]."""
    told: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Their log-probs under the teacher, float32 [T, k]."""

    def forget(self) -> None:
        """Begin a step."""
        self.of_row.clear()
        self.told.clear()


@dataclass(frozen=True, kw_only=True)
class _OfChosen(HeadStat):
    """A quantity of the rows of one micro-batch that goes by their chosen ids."""

    chosen: Chosen
    rows: Sequence[Row] = ()

    def of_rows(self, rows: Sequence[Row]) -> HeadStat:
        return dataclasses.replace(self, rows=rows)

    @property
    def idle(self) -> bool:
        """Whether the pass is made for other ranks alone: its row has no ids."""
        return any(row.index < 0 for row in self.rows)

    def ids_MK(self, device: torch.device) -> Tensor:
        return self._together(self.chosen.of_row, device)

    def told_MK(self, device: torch.device) -> Tensor:
        return self._together(self.chosen.told, device)

    def parts(self, made_MK: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Cut what was made of all tokens: (index of a row, its part on the CPU)."""
        lengths = response_mask(self.rows).sum(1).tolist()
        return zip((row.index for row in self.rows), made_MK.cpu().split(lengths), strict=True)

    def _together(self, kept: dict[int, Tensor], device: torch.device) -> Tensor:
        parts = [kept[row.index] for row in self.rows]
        return to_device(torch.cat(parts) if parts else torch.zeros(0, self.chosen.k), device)


@dataclass(frozen=True, kw_only=True)
class Choose(_OfChosen):
    """Chooses the likeliest ids in a pass of the policy."""

    def at(self, hidden_MH: Tensor, head_VH: Tensor, **how: Any) -> Tensor:
        if self.idle:
            return torch.zeros(len(hidden_MH), device=hidden_MH.device)
        found_MK = top_ids(_outputs(hidden_MH, head_VH, how), self.chosen.k, ids=self.chosen.ids, **_drawn(how))
        self.chosen.of_row.update(self.parts(found_MK))
        return torch.zeros(len(hidden_MH), device=hidden_MH.device)


@dataclass(frozen=True, kw_only=True)
class Told(_OfChosen):
    """Takes their log-probs from a pass of the teacher."""

    def at(self, hidden_MH: Tensor, head_VH: Tensor, **how: Any) -> Tensor:
        if self.idle:
            return torch.zeros(len(hidden_MH), device=hidden_MH.device)
        made_MK = chosen_logprobs(_outputs(hidden_MH, head_VH, how), self.ids_MK(hidden_MH.device).long(), **_drawn(how))
        self.chosen.told.update(self.parts(made_MK.float()))
        return torch.zeros(len(hidden_MH), device=hidden_MH.device)


@dataclass(frozen=True, kw_only=True)
class TopKDivergence(_OfChosen):
    """Reverse divergence over them, in the pass of the loss."""

    gradient: bool = True

    def at(self, hidden_MH: Tensor, head_VH: Tensor, **how: Any) -> Tensor:
        if self.idle:
            return hidden_MH.sum(1).float() * 0
        device = hidden_MH.device
        return chosen_reverse_kl(_outputs(hidden_MH, head_VH, how), self.ids_MK(device).long(), self.told_MK(device).float(), **_drawn(how))


def _outputs(hidden_MH: Tensor, head_VH: Tensor, how: dict[str, Any]) -> Outputs:
    return Outputs(hidden_MH=hidden_MH, head_VH=head_VH, bias_V=how["bias"], cap=how["cap"])


def _drawn(how: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": how["temperature"], "forbidden": how["forbidden"]}
