"""Supervised fine-tuning with thought dropout: stage 1 of TON ("Think or Not?", arXiv:2505.16854, section 3).

Target: `<think>{thought}</think><answer>{answer}</answer>`; with probability `thought_dropout` the thought becomes two newlines.
The draw depends on (seed, row) or, with `dropout_per_epoch`, also on the epoch; the released script draws once per row. A row
without a thought gets the empty one. Loss on the assistant turn only, its end token included, mean over the batch's tokens.

Ours: a probability for each category of rows, as `thought_dropout: {easy: 0.8, hard: 0.2}`. The paper's one probability teaches a
readiness to think that all questions share; with one for each, RL begins with a policy that already tells the questions apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from vlmrl import faults, rng
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import reducer
from vlmrl.answers.tags import gold_text
from vlmrl.defaults import SFT_REDUCER
from vlmrl.errors import ConfigError
from vlmrl.policy.pack import Row, response_mask
from vlmrl.train.stage.base import Stage, StepResult
from vlmrl.train.stage.loss import Loss, TokenObjective
from vlmrl.train.statistics import LABEL_KEYS, label_of
from vlmrl.train.step import Minibatch, optimizer_step

if TYPE_CHECKING:
    from vlmrl.config.schema import SftSection
    from vlmrl.types import Sample


def negative_log_likelihood(x: LossInputs) -> LossOutput:
    """Compute -log p of each target token, [B, T]."""
    return LossOutput(-x.logp_BT, {})


def category_of(sample: Sample) -> str | None:
    """Read what a row says in `category` of its meta, or else in `difficulty`."""
    return next((label for key in LABEL_KEYS if (label := label_of(sample, key)) is not None), None)


def check_dropout(samples: Iterable[Sample], cfg: SftSection) -> None:
    """Refuse chances by category that do not fit the rows of a stage.

    Raises:
        ConfigError: a row's category has no chance, or a chance is for a category that no row has.
    """
    if not isinstance(cfg.thought_dropout, dict):
        return
    named, unused = f"stages.{cfg.name}.thought_dropout", set(cfg.thought_dropout)
    for sample in samples:
        category = category_of(sample)
        if category is None or category not in cfg.thought_dropout:
            said = "says neither `category` nor `difficulty`" if category is None else f"is of category '{category}'"
            raise ConfigError(f"{named} has chances for {sorted(cfg.thought_dropout)}, and row '{sample.id}' ({sample.source}) {said}")
        unused.discard(category)
    if unused:
        raise ConfigError(f"{named} has a chance for {sorted(unused)}, and no row is of that category; remove it, or correct the name")


def drops_thought(cfg: SftSection, seed: int, sample: Sample, epoch: int) -> bool:
    """Whether this row's thought is dropped (in this epoch)."""
    chance = cfg.thought_dropout
    if isinstance(chance, dict):
        chance = chance[category_of(sample) or ""]
    # coordinates and no generator: the draw is the same after a restart, and whatever ranks there are
    when = (epoch,) if cfg.dropout_per_epoch else ()
    return rng.uniform(seed, "thought_dropout", cfg.name, sample.id, *when) < chance


def target(cfg: SftSection, seed: int, sample: Sample, epoch: int) -> str:
    """Write the text that a row teaches."""
    if cfg.answer_format == "answer_only" or drops_thought(cfg, seed, sample, epoch):
        return gold_text(sample, cfg.answer_format, None)
    return gold_text(sample, cfg.answer_format, sample.thought)


def sft_step(stage: Stage, cfg: SftSection, loss: Loss = negative_log_likelihood, *, reduce: str = SFT_REDUCER) -> StepResult:
    """Make one step: plan, encode, update.

    Args:
        loss: one number per target token.
        reduce: name of the reducer that makes a scalar of them.
    """
    rng.seed_step(stage.seed, cfg.name, stage.state.step)
    return learn_rows(stage, taught_rows(stage, cfg), loss, reduce=reduce)


def learn_rows(stage: Stage, rows: tuple[Row, ...], loss: Loss = negative_log_likelihood, *, reduce: str = SFT_REDUCER) -> StepResult:
    """Make one update on responses that are given: those of this rank, as `sft_step` makes it."""
    mask_NT = response_mask(rows)
    stage.set_rate()
    faults.point("step.before_update")
    # the objective of RL without divergence and correction; the advantage is 1 everywhere
    objective = TokenObjective(loss=loss, reducer=reducer.bind(reduce))
    with stage.clock.phase("forward_backward"):
        report = optimizer_step(stage.learner, Minibatch(rows=rows, adv_NT=torch.ones(mask_NT.shape), mask_NT=mask_NT), objective)
    stage.count(rows)
    return StepResult(report=report, values={"loss": report.loss, "entropy": report.metrics.get("entropy", 0.0)})


def taught_rows(stage: Stage, cfg: SftSection) -> tuple[Row, ...]:
    """Plan and encode the step's rows of this rank.

    Returns:
        Rows whose response is the text that they teach, end token included.
    """
    bundle = stage.policy.bundle
    with stage.timed_loader():
        taken = stage.loader.next_batch(stage.state.ledger, prompts=cfg.batch, rollouts=1)
    texts = [target(cfg, stage.seed, prompt.sample, planned.epoch) for _, planned, prompt in taken]
    return tuple(
        Row(index=i, group=place, prompt=prompt, response=(*bundle.tokenize(text), bundle.end_ids[0]))
        for i, ((place, _, prompt), text) in enumerate(zip(taken, texts, strict=True))
    )
