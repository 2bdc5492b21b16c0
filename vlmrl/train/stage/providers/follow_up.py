"""How likely a person is to go on in one way or another after an answer, under the stage's starting weights.

A follow-up is scored as the answer to a prompt of its own, which tells the conversation so far and shows the question's media.
"""

from __future__ import annotations

import dataclasses

import torch

from vlmrl.answers.tags import FREE
from vlmrl.errors import MediaError, RowError
from vlmrl.policy.pack import Row
from vlmrl.train.stage.algorithm import Batch, Bound
from vlmrl.train.stage.base import StageRun
from vlmrl.train.stage.provide import provides
from vlmrl.types import Sample

MOST = 8000
"""Characters of an answer that are shown, from its end."""


def so_far(question: str, answer: str) -> str:
    """The conversation, up to where the person goes on."""
    return f"A person asked: {question}\nAn assistant answered:\n{answer.strip()[-MOST:]}\nSay what the person answers."


@provides("liked_N", "disliked_N", reference=True, arguments=("positive", "negative"))
def follow_ups(stage: StageRun, batch: Batch, method: Bound) -> dict[str, torch.Tensor]:
    """Mean over the method's `positive` follow-ups of the mean log-prob of their tokens, and the same of `negative`, float64 [n]; NaN where
    the conversation is too long for a prompt. One forward of the starting weights for all follow-ups to all rows."""
    kinds: dict[str, list[str]] = {"liked_N": method.argument("positive"), "disliked_N": method.argument("negative")}
    written = {text: tuple(stage.policy.bundle.tokenize(text)) for texts in kinds.values() for text in texts}
    samples: list[Sample] = [scored.group.prompt.sample for _, scored in batch.groups for _ in scored.group.rollouts]
    rows: list[Row] = []
    where: list[tuple[str, int, int]] = []
    for n, (sample, rollout) in enumerate(zip(samples, batch.rollouts, strict=True)):
        try:
            prompt = stage.loader.encoder.encode(dataclasses.replace(sample, question=so_far(sample.question, rollout.text)), FREE)
        except (RowError, MediaError):
            continue
        for kind, texts in kinds.items():
            rows += [Row(index=len(rows) + i, group=n, prompt=prompt, response=written[text]) for i, text in enumerate(texts)]
            where += [(kind, n, len(texts))] * len(texts)
    logp_NT = stage.score_reference(rows).double()  # on every rank, also one that has none: it may gather weights
    out = {kind: torch.full((len(batch.rows),), float("nan"), dtype=torch.float64) for kind in kinds}
    for place, (kind, n, count) in enumerate(where):
        mean = logp_NT[place, : len(rows[place].response)].mean() / count
        out[kind][n] = mean if out[kind][n].isnan() else out[kind][n] + mean
    return out
