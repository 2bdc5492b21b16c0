"""Which line of its answer each token belongs to, for answers that are lists, and which lines hit (`rewards.lists`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vlmrl.rewards.lists import MOST, hits
from vlmrl.rollout.answer_span import answer_span, answer_tokens
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import Minibatch


def lines(ids: Sequence[int], text: str, answer_format: str, decode: Callable[[Sequence[int]], str]) -> list[tuple[str, int, int]]:
    """(text, first token, token behind the last) of each line of the answer that is not blank."""
    span = answer_span(text, answer_format)
    if span is None:
        return []
    out: list[tuple[str, int, int]] = []
    place = span[0]
    for line in text[span[0] : span[1]].split("\n")[:MOST]:
        if line.strip():
            out.append((line, *answer_tokens(ids, text, (place, place + len(line)), decode)))
        place += len(line) + 1
    return out


def numbered(found: Sequence[tuple[str, int, int]], width: int) -> torch.Tensor:
    """Number of each token's line, from 0; -1 outside. A token that two lines share belongs to the first. int64 [T]"""
    out = torch.full((width,), -1, dtype=torch.int64)
    for number, (_, start, end) in reversed(list(enumerate(found))):
        out[start:end] = number
    return out


@provides("item_NT", "hit_NJ", arguments=("items",))
def listed(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Line of the answer that each token belongs to, int64 [n, T], -1 for none; and whether each of the first lines hits, float64
    [n, items], 0 for lines that are not there."""
    count, width = method.argument("items"), batch.mask_NT.shape[1]
    item_NT = torch.full((len(batch.rows), width), -1, dtype=torch.int64)
    hit_NJ = torch.zeros((len(batch.rows), count), dtype=torch.float64)
    prompts = [scored.group.prompt for _, scored in batch.groups for _ in scored.group.rollouts]
    for n, (rollout, prompt) in enumerate(zip(batch.rollouts, prompts, strict=True)):
        found = lines(rollout.ids, rollout.text, prompt.answer_format, stage.policy.bundle.decode)
        item_NT[n] = numbered(found, width)
        hit = hits([line for line, _, _ in found[:count]], prompt.sample)
        hit_NJ[n, : len(hit)] = torch.tensor(hit, dtype=torch.float64)
    return {"item_NT": item_NT, "hit_NJ": hit_NJ}


@provides("item_BT")
def listed_of_minibatch(stage: Stage, batch: Minibatch, method: Bound) -> dict[str, torch.Tensor]:
    """Line of the answer that each token belongs to, int64 [N, T], -1 for none."""
    decode = stage.policy.bundle.decode
    out = torch.full(batch.mask_NT.shape, -1, dtype=torch.int64)
    for n, row in enumerate(batch.rows):
        out[n] = numbered(lines(row.response, decode(row.response), row.prompt.answer_format, decode), out.shape[1])
    return {"item_BT": out}
