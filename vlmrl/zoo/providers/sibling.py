"""How the policy sees an answer that failed once it has been shown one that is right: the teacher of self-distillation."""

from __future__ import annotations

import dataclasses

import torch

from vlmrl.errors import MediaError, RowError
from vlmrl.policy.pack import Row
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_tokens
from vlmrl.types import Prompt, ScoredGroup

MOST = 8000
"""Characters of the right answer that are shown."""


def shown_question(question: str, solution: str) -> str:
    """The question with a right answer behind it."""
    return f"{question}\nA right answer to this question:\n{solution.strip()[-MOST:]}\nAnswer it in your own words."


@provides("sibling_logp_NT", "sibling_entropy_NT", "routed_N", arguments=("success_at",))
def after_a_sibling(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log-prob of each token and entropy, float32 [n, T], under the policy and a prompt with the group's best right answer, for sampled
    rows of a reward below the method's `success_at`; 0 for all others. Which rows these are, bool [n]. A group without a right answer,
    or whose prompt would be too long with it, has none. One forward of these rows without gradient."""
    reward_N = batch.x.reward_N[batch.mine]
    limit: float = method.argument("success_at")
    routed: list[Row] = []
    start = 0
    for _, scored in batch.groups:
        places = range(start, start + len(scored.group.rollouts))
        start = places.stop
        prompt = _with_solution(stage, scored, reward_N[places.start : places.stop].tolist(), limit)
        if prompt is not None:
            failed = [n for n in places if batch.rollouts[n].on_policy and float(reward_N[n]) < limit]
            routed += [dataclasses.replace(batch.rows[n], prompt=prompt) for n in failed]
    logp_NT, entropy_NT = (torch.zeros(batch.mask_NT.shape) for _ in range(2))
    routed_N = torch.zeros(len(batch.rows), dtype=torch.bool)
    scores = score_tokens(stage.learner, routed)  # on every rank, also one that has none
    for n, row in enumerate(routed):
        width = len(row.response)
        logp_NT[row.index, :width], entropy_NT[row.index, :width] = scores.logp_NT[n, :width], scores.entropy_NT[n, :width]
        routed_N[row.index] = True
    return {"sibling_logp_NT": logp_NT, "sibling_entropy_NT": entropy_NT, "routed_N": routed_N}


def _with_solution(stage: Stage, scored: ScoredGroup, rewards: list[float], limit: float) -> Prompt | None:
    """The group's prompt with its best sampled right answer; None without one, or where it cannot be made."""
    rollouts = scored.group.rollouts
    right = [
        (-reward, len(r.ids), n) for n, (r, reward) in enumerate(zip(rollouts, rewards, strict=True)) if r.on_policy and reward >= limit
    ]
    if not right:
        return None
    sample = scored.group.prompt.sample
    shown = dataclasses.replace(sample, question=shown_question(sample.question, rollouts[min(right)[2]].text))
    try:
        return stage.loader.encoder.encode(shown, scored.group.prompt.answer_format)
    except (RowError, MediaError):
        return None
