"""Providers of a teacher's scores, and the two methods that learn from them. On-policy distillation: arXiv:2306.13649."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs, LossInputs, LossOutput
from vlmrl.algo.needs import need
from vlmrl.algo.registries import auxiliary_loss, reweight
from vlmrl.extras.distill.gap import cut, gap_sums, means, reverse_kl_advantage
from vlmrl.extras.distill.section import LIKELIEST, SAMPLED, WHOLE
from vlmrl.extras.distill.teacher import TeacherScores
from vlmrl.extras.distill.topk import CHOSEN, Choose
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch, sampler_logprobs
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import Minibatch, score_tokens

GAP, DIVERGENCE, TOPK = "teacher_gap_NT", "teacher_jsd_BT", "teacher_topk_BT"
K = 32
"""Ids that `teacher_topk_kl` compares, where the recipe says nothing."""


def _refuses(arguments: Mapping[str, Any], stage: Any) -> list[str]:
    """A method that asks a teacher, in a stage that has none."""
    return [] if stage.kind == "distill" else ["it asks a teacher, and only a stage of kind distill has one; set kind: distill"]


def scores_of(stage: Stage) -> TeacherScores:
    """Find what the stage's teacher has scored."""
    found = stage.providers.keepers[GAP]
    assert isinstance(found, TeacherScores)
    return found


@provides(GAP, keeps=lambda stage, method: TeacherScores())
def teacher_gap(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, Tensor]:
    """Log-prob of each sampled token under the policy minus that under the teacher, float32 [n, T], 0 outside the responses.

    The policy's are those of the trainer where an advantage is made of them, so that no rounding of a sampler enters, and where its
    likeliest ids are asked for. Where they are for the log alone (`teacher_jsd`) they are the sampler's, and no pass is made for them.
    """
    scores, width = scores_of(stage), batch.mask_NT.shape[1]
    # a medium that has changed on one rank ends the run on all, before any waits for it in a pass
    rows = dist.run_synchronized(lambda: scores.rows_of(batch.rows, batch.groups))
    if scores.chosen is not None:
        scores.chosen.forget()
    if method.name == SAMPLED or scores.chosen is not None:
        stats = {} if scores.chosen is None else {CHOSEN: Choose(chosen=scores.chosen)}
        own_NT = cut(score_tokens(stage.learner, batch.rows, stats=stats).logp_NT, width)
    else:
        own_NT, _ = sampler_logprobs(batch.rollouts, width)
    teacher_NT = cut(scores.score(stage.learner, rows), width)
    known_NT = batch.mask_NT & own_NT.isfinite()
    gap_NT = torch.where(known_NT, own_NT - teacher_NT, torch.zeros_like(teacher_NT))
    sums = gap_sums(gap_NT, known_NT, [row.prompt for row in batch.rows])
    for side, of in (("student", batch.rows), ("teacher", rows)):
        sums[f"distill/prompt_tokens/{side}"] = (float(sum(len(row.prompt.ids) for row in of)), len(of))
    batch.measured |= means(dist.gather(sums))
    # a group whose answers the teacher likes otherwise than the policy teaches, whatever its rewards are
    told = {row.group for row, differs in zip(batch.rows, (gap_NT != 0).any(dim=1).tolist(), strict=True) if differs}
    batch.measured["groups_with_signal"] = float(sum(dist.gather(len(told))))
    return {GAP: gap_NT}


@provides(DIVERGENCE)
def divergence(stage: Stage, batch: Minibatch, method: Bound) -> dict[str, Tensor]:
    """Nothing here: the pass of the loss itself computes it, from the hidden states that the teacher's pass has left."""
    return {}


@provides(TOPK)
def topk(stage: Stage, batch: Minibatch, method: Bound) -> dict[str, Tensor]:
    """Nothing here: the pass of the loss itself computes it, from the ids that were chosen and what the teacher said of them."""
    return {}


@reweight(SAMPLED, paper="arXiv:2306.13649", needs=(GAP,), per="token", moves_signs=True, refuses=_refuses)
def teacher_reverse_kl(x: AdvantageInputs, adv_NT: Tensor, *, coefficient: float = 1.0, clamp: float = 10.0) -> Tensor:
    """Add `coefficient` times log p_teacher - log p_policy of each sampled token to its advantage.

    The policy gradient of this is that of the reverse divergence from the teacher.

    Args:
        coefficient: of the teacher's part, beside an advantage of rewards; alone it scales the learning rate.
        clamp: largest size of a token's log-ratio, in nats.

    Returns:
        [n, T].

    Raises:
        ValueError: a clamp that is not positive, or no scores of a teacher.
    """
    if not clamp > 0:
        raise ValueError(f"reweight '{SAMPLED}': clamp is {clamp}, must be positive")
    gap_NT = need(x, GAP, f"reweight '{SAMPLED}'")[:, : adv_NT.shape[1]]
    return adv_NT + reverse_kl_advantage(gap_NT, coefficient=coefficient, clamp=clamp).to(adv_NT.dtype)


@auxiliary_loss(WHOLE, paper="arXiv:2306.13649", needs=(GAP, DIVERGENCE), refuses=_refuses)
def teacher_jsd(x: LossInputs, *, beta: float = 0.5) -> LossOutput:
    """Add the generalised Jensen-Shannon divergence from the teacher, over the whole vocabulary, at each sampled token.

    Args:
        beta: 0 for KL(teacher || policy), 1 for KL(policy || teacher), between them a mixture.

    Returns:
        Loss [B, T], in nats, with gradient.
    """
    return LossOutput(x.need(DIVERGENCE, WHOLE))


@auxiliary_loss(LIKELIEST, paper="arXiv:2306.13649", needs=(GAP, TOPK), refuses=_refuses)
def teacher_topk_kl(x: LossInputs, *, k: int = K) -> LossOutput:
    """Add the reverse divergence from the teacher over the policy's k likeliest ids at each sampled token, all other ids as one.

    It is KL(policy || teacher) from below: a lower bound of the whole divergence, which sees the mass of the other ids and not how it is
    spread among them. The ids are chosen once in a step, by the policy that its updates start from. The teacher may be on a server.

    Args:
        k: ids at each token.

    Returns:
        Loss [B, T], in nats, with gradient.
    """
    return LossOutput(x.need(TOPK, LIKELIEST))
