"""A third kind of stage from outside the package: rejection-sampling fine-tuning. RAFT, arXiv:2304.06767; RFT, arXiv:2308.01825.

A step samples answers, keeps the best of each group if its reward is good enough, and trains on them as on written ones: -log p of each
token, mean over the tokens. No advantage and no ratio. It uses the same parts as `grpo`: the feed, the pipeline with its journal (so a
killed step is replayed and not generated again), the rewards, the optimizer step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field

from vlmrl import faults, protocols, rng
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import reducer
from vlmrl.config.schema import RolloutStage
from vlmrl.config.section import PositiveInt
from vlmrl.policy.pack import Row, response_mask
from vlmrl.run.kinds import stage_kind
from vlmrl.run.open_stage import open_pipeline, open_rollout_stage
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.pipeline import Pipeline
from vlmrl.train.stage.algorithm import bind
from vlmrl.train.stage.base import Stage, StepResult
from vlmrl.train.stage.loss import TokenObjective
from vlmrl.train.step import Minibatch, StepReport, optimizer_step
from vlmrl.types import ScoredGroup


class RejectionSection(RolloutStage):
    kind: Literal["rejection_sampling"]
    best: PositiveInt = Field(default=1, description="Answers of a group that train, at most")
    min_reward: float = Field(default=0.5, description="Answers with less train never")


def negative_log_likelihood(x: LossInputs) -> LossOutput:
    """-log p of each token."""
    return LossOutput(-x.logp_BT)


def accepted(scored: ScoredGroup, *, best: int, min_reward: float) -> list[int]:
    """Places of a group's rollouts that train: the best sampled ones, the first of equals first."""
    totals = scored.scores.total()
    good = [
        (-value, k) for k, value in enumerate(totals) if value is not None and value >= min_reward and scored.group.rollouts[k].on_policy
    ]
    return [k for _, k in sorted(good)[:best]]


@stage_kind(RejectionSection)
def rejection_sampling(session: Session, cfg: RejectionSection) -> None:
    """Open the stage and run its steps."""
    loop = open_rollout_stage(session, cfg)
    pipeline = open_pipeline(loop, cfg, bind(protocols.strategy, cfg.rollout.strategy).call())
    loop.run(partial(rejection_step, loop.stage, cfg, pipeline))


def rejection_step(stage: Stage, cfg: RejectionSection, pipeline: Pipeline) -> StepResult:
    """Make one step: roll out, score, accept, update."""
    assert stage.rewards is not None
    rng.seed_step(stage.seed, cfg.name, stage.state.step)
    groups, _ = pipeline.take(prompts=cfg.rollout.prompts_per_step)
    faults.point("rollout.scored")
    stage.rewards.observe(groups)
    rows = accepted_rows(groups, cfg)
    values = described(groups, rows)
    if not values["accepted"]:
        return StepResult(report=StepReport(applied=True, grad_norm=0.0, loss=0.0), values=values)
    mask_NT = response_mask(rows)
    stage.set_rate()
    faults.point("step.before_update")
    objective = TokenObjective(loss=negative_log_likelihood, reducer=reducer.bind("token_mean"))
    with stage.clock.phase("forward_backward"):
        minibatch = Minibatch(rows=tuple(rows), adv_NT=torch.ones(mask_NT.shape), mask_NT=mask_NT)
        report = optimizer_step(stage.learner, minibatch, objective)
    stage.count(rows)
    return StepResult(report=report, values=values | {"loss": report.loss} | report.metrics)


def accepted_rows(groups: Sequence[tuple[int, ScoredGroup]], cfg: RejectionSection) -> list[Row]:
    """The accepted answers of this rank."""
    found = [(place, s, k) for place, s in groups for k in accepted(s, best=cfg.best, min_reward=cfg.min_reward)]
    return [Row(index=n, group=place, prompt=s.group.prompt, response=s.group.rollouts[k].ids) for n, (place, s, k) in enumerate(found)]


def described(groups: Sequence[tuple[int, ScoredGroup]], rows: Sequence[Row]) -> dict[str, float]:
    """Mean reward of what was sampled, and how many answers were accepted, over all ranks."""
    rewards = [value for _, scored in groups for value, _ in scored.outcomes() if value is not None]
    counts = [float(len(rows)), sum(rewards), float(len(rewards))]
    train, total, judged = (sum(values) for values in zip(*dist.gather(counts), strict=True))
    return {"accepted": train, "reward": total / max(1.0, judged)}
