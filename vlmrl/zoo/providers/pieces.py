"""Which piece of its thought each token belongs to (`rollout.pieces`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vlmrl.rollout.pieces import cut_places
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides


def piece_numbers(ids: Sequence[int], text: str, pieces: int, decode: Callable[[Sequence[int]], str]) -> list[int]:
    """Number of each token's piece, from 0: of the cuts that lie before its first character."""

    def tokens_to(place: int) -> int:
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(decode(ids[:middle])) >= place else (middle + 1, high)
        return low

    starts = [tokens_to(place) for place in cut_places(text, pieces)]
    return [sum(start <= t for start in starts) for t in range(len(ids))]


@provides("piece_NT", arguments=("pieces",))
def pieces_of_thoughts(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Number of the piece of each response token, from 0, int64 [n, T]; what is behind the thought belongs to its last piece."""
    out = torch.zeros(batch.mask_NT.shape, dtype=torch.int64)
    for n, rollout in enumerate(batch.rollouts):
        found = piece_numbers(rollout.ids, rollout.text, method.argument("pieces"), stage.policy.bundle.decode)
        out[n, : len(found)] = torch.tensor(found, dtype=torch.int64)
    return {"piece_NT": out}
