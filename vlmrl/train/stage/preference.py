"""Stage `preference`: train on pairs of a chosen and a rejected answer (DPO, arXiv:2305.18290, and what derives from it).

A row's pair is `meta.chosen` and `meta.rejected`, whole completions. Without `chosen` it is the row's own answer in the answer format, with
its thought; without `rejected` the row has no pair, and only losses that imitate use it. The reference is the stage's starting weights.

A pair is two answers to one prompt, of advantage 1 and -1, so the stage is a step of a loss that compares rollouts: two passes, with the
exact gradient however micro-batches cut it, and prompts shared in the forward.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from vlmrl import faults, rng
from vlmrl.answers.tags import gold_text
from vlmrl.errors import ConfigError
from vlmrl.policy.pack import Row, response_mask
from vlmrl.train.stage.base import Stage, StepResult
from vlmrl.train.stage.loss import group_objective
from vlmrl.train.step import Minibatch, optimizer_step

if TYPE_CHECKING:
    from vlmrl.config.stages import PreferenceSection
    from vlmrl.train.stage.algorithm import Bound
    from vlmrl.types import Sample


def pair(sample: Sample, answer_format: str) -> tuple[str, str | None]:
    """Read a row's pair: (chosen completion, rejected one or None).

    Raises:
        ConfigError: one of them is no text, or empty, or both are the same.
    """
    where = f"row '{sample.id}' ({sample.source})"
    for key in ("chosen", "rejected"):
        text = sample.meta.get(key)
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise ConfigError(f"{where}: meta.{key} must be a text that is not empty, a whole completion")
    chosen = sample.meta.get("chosen") or gold_text(sample, answer_format, sample.thought)
    rejected = sample.meta.get("rejected")
    if chosen == rejected:
        raise ConfigError(f"{where}: meta.rejected is the chosen answer; remove it, or give another one")
    return chosen, rejected


def check_pairs(stage: Stage, cfg: PreferenceSection) -> None:
    """Check every row's pair before the first step.

    Raises:
        ConfigError: a row's pair cannot be used, or no row has one.
    """
    pairs = [pair(sample, cfg.answer_format) for sample in stage.loader.samples.values()]
    if pairs and all(rejected is None for _, rejected in pairs):
        raise ConfigError(f"stage '{cfg.name}': no row has a 'meta.rejected'; a stage of kind 'preference' needs pairs")


def preference_step(stage: Stage, cfg: PreferenceSection, loss: Bound) -> StepResult:
    """Make one step: plan, encode, score under the reference, update."""
    rng.seed_step(stage.seed, cfg.name, stage.state.step)
    rows, sign_N = paired_rows(stage, cfg)
    mask_NT = response_mask(rows)
    with stage.clock.phase("old_and_reference"):
        minibatch = Minibatch(
            rows=rows,
            adv_NT=sign_N[:, None] * torch.ones(mask_NT.shape),  # [N] -> [N, T]
            mask_NT=mask_NT,
            logp_old_NT=stage.score_reference(rows),  # the log-ratio of these losses is to the reference
        )
        objective = group_objective(stage.learner, loss, minibatch)
    stage.set_rate()
    faults.point("step.before_update")
    with stage.clock.phase("forward_backward"):
        report = optimizer_step(stage.learner, minibatch, objective)
    stage.count(rows)
    return StepResult(report=report, values={"loss": float(objective.weights.loss)})


def paired_rows(stage: Stage, cfg: PreferenceSection) -> tuple[tuple[Row, ...], torch.Tensor]:
    """Plan and encode the step's rows of this rank, chosen before rejected.

    Returns:
        (rows, sign [N]: 1 of a chosen one, -1 of a rejected one).
    """
    bundle = stage.policy.bundle
    with stage.timed_loader():
        taken = stage.loader.next_batch(stage.state.ledger, prompts=cfg.batch, rollouts=1)
    out: list[Row] = []
    signs: list[float] = []
    for place, _, prompt in taken:
        for sign, text in zip((1.0, -1.0), pair(prompt.sample, cfg.answer_format), strict=True):
            if text is not None:
                ids = tuple(bundle.tokenize(text))
                # a text may spell a control token, which would be read as a picture or as the end
                check_plain(ids, {*bundle.forbidden_ids, *bundle.end_ids}, prompt.sample)
                out.append(Row(index=len(out), group=place, prompt=prompt, response=(*ids, bundle.end_ids[0])))
                signs.append(sign)
    return tuple(out), torch.tensor(signs)


def check_plain(ids: Collection[int], control: Collection[int], sample: Sample) -> None:
    """Refuse a completion with a control token in it.

    Raises:
        ConfigError: it has one.
    """
    found = sorted(set(control) & set(ids))
    if found:
        raise ConfigError(f"row '{sample.id}' ({sample.source}): a completion holds the control token {found[0]}; write it without")
