"""Which paragraph of its answer each token belongs to, for what pools over these."""

from __future__ import annotations

import torch

from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides


def paragraphs(pieces: list[str]) -> list[int]:
    """Number the paragraph of each token, from the texts of the tokens; one that is blank goes on."""
    out: list[int] = []
    number, text = 0, ""
    for piece in pieces:
        out.append(number)
        text += piece
        body = text.rstrip()
        if body and text[len(body) :].count("\n") > 1:
            number, text = number + 1, ""
    return [min(one, number - 1) for one in out] if number and not text.strip() else out


@provides("paragraph_NT")
def paragraph_numbers(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Number of the paragraph of each response token, from 0, int64 [n, T]; paragraphs are parted by blank lines."""
    tokenizer = stage.policy.bundle.tokenizer
    known = {one: str(tokenizer.decode([one])) for one in {one for row in batch.rows for one in row.response}}
    out = torch.zeros(batch.mask_NT.shape, dtype=torch.int64)
    for n, row in enumerate(batch.rows):
        out[n, : len(row.response)] = torch.tensor(paragraphs([known[one] for one in row.response]), dtype=torch.int64)
    return {"paragraph_NT": out}
