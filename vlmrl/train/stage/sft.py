"""Supervised fine-tuning with thought dropout: stage 1 of TON ("Think or Not?", arXiv:2505.16854, section 3).

Target: `<think>{thought}</think><answer>{answer}</answer>`; with probability `thought_dropout` the thought becomes two newlines.
The draw depends on (seed, row) or, with `dropout_per_epoch`, also on the epoch; the released script draws once per row. A row
without a thought gets the empty one. Loss on the assistant turn only, its end token included, mean over the batch's tokens.
"""

from __future__ import annotations

import torch

from vlmrl import faults, rng
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import reducer
from vlmrl.answers.tags import gold_text
from vlmrl.config.schema import SftSection
from vlmrl.policy.pack import Row, response_mask
from vlmrl.train.objective import TokenObjective
from vlmrl.train.stage.base import StageRun
from vlmrl.train.step import Minibatch, optimizer_step
from vlmrl.types import Sample


def negative_log_likelihood(x: LossInputs) -> LossOutput:
    """-log p of each target token."""
    return LossOutput(-x.logp_BT, {})


def drops_thought(cfg: SftSection, seed: int, sample_id: str, epoch: int) -> bool:
    """Whether this row's thought is dropped (in this epoch)."""
    when = (epoch,) if cfg.dropout_per_epoch else ()
    return rng.uniform(seed, "thought_dropout", cfg.name, sample_id, *when) < cfg.thought_dropout


def target(cfg: SftSection, seed: int, sample: Sample, epoch: int) -> str:
    """The text that the row teaches."""
    if cfg.answer_format == "answer_only" or drops_thought(cfg, seed, sample.id, epoch):
        return gold_text(sample, cfg.answer_format, None)
    return gold_text(sample, cfg.answer_format, sample.thought)


def train(stage: StageRun, cfg: SftSection) -> None:
    """Run the stage from its current step to its end."""
    state, bundle = stage.state, stage.policy.bundle
    objective = TokenObjective(loss=negative_log_likelihood, reducer=reducer.bind("token_mean"))
    while state.step < cfg.steps:
        clock = stage.clock
        rng.seed_step(stage.seed, cfg.name, state.step)
        with stage.timed_feed(clock):
            taken = stage.feed.take(state.ledger, prompts=cfg.batch, rollouts=1)
        rows = tuple(
            Row(
                index=i,
                group=place,
                prompt=prompt,
                response=(*bundle.tokenize(target(cfg, stage.seed, prompt.sample, wish.epoch)), bundle.end_ids[0]),
            )
            for i, (place, wish, prompt) in enumerate(taken)
        )
        mask = response_mask(rows)
        stage.set_rate(cfg)
        faults.point("step.before_update")
        with clock.phase("forward_backward"):
            report = optimizer_step(
                stage.learner,
                Minibatch(rows=rows, adv_NT=torch.ones(mask.shape), mask_NT=mask),
                objective,
            )
        stage.count(rows)
        stage.after_update(report, cfg, {"loss": report.loss, "entropy": report.metrics.get("entropy", 0.0)})
