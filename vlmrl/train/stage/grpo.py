"""The GRPO family: one step from data rows to a weight update, top to bottom.

Which rows, how their answers are made, scored, shaped, filtered, turned into advantages and into a loss are functions that the
recipe names; what these need beyond the rewards, providers fetch (`stage.provide`). This file only moves the group between them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from vlmrl import faults, rng
from vlmrl.algo import segments
from vlmrl.algo.constraint.registry import PartialMean
from vlmrl.errors import NumericsError
from vlmrl.protocols import RememberingStrategy
from vlmrl.sampling.dynamic_sampling import Refill, refill
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch, sampler_logprobs
from vlmrl.train.stage.algorithm import Algorithm, advantage_problem, credit_tokens, select
from vlmrl.train.stage.base import Recorder, Stage, StepResult
from vlmrl.train.stage.loss import objective_of
from vlmrl.train.statistics import describe, summed_notes
from vlmrl.train.step import Minibatch, StepReport, optimizer_step, score_rows
from vlmrl.types import ScoredGroup

if TYPE_CHECKING:
    from vlmrl.algo.inputs import LossInputs
    from vlmrl.config.schema import GrpoSection
    from vlmrl.policy.pack import Row
    from vlmrl.train.pipeline import Pipeline

    See = Callable[[Sequence[Row], LossInputs], None]

MAX_EMPTY_STEPS = 20
ONCE = Refill(prompts=0, stop="exhausted", surplus=0)
"""Without dynamic sampling: the step trains on what one batch gave."""


def grpo_step(stage: Stage, cfg: GrpoSection, algorithm: Algorithm, pipeline: Pipeline, keeper: Recorder | None = None) -> StepResult:
    """Make one step: plan, roll out, score, select, credit, update.

    Args:
        pipeline: gives the scored groups; with staleness they were sampled some steps before.
        keeper: records groups for whoever looks at the run; None: nobody does.

    Returns:
        Report of the update with the means of what was logged; where no row trains, one without an update.

    Raises:
        NumericsError: an advantage is not finite, or no row has been trainable for `MAX_EMPTY_STEPS` steps.
    """
    state, clock = stage.state, stage.clock
    assert stage.rewards is not None
    # for dropout in modules of third parties; everything of ours draws by coordinates, whatever was drawn before
    rng.seed_step(stage.seed, cfg.name, state.step)
    batch = gather_groups(stage, cfg, algorithm, pipeline)
    faults.point("rollout.scored")

    with clock.phase("algorithm"):
        # behind the making of the batch, whose `baseline_N` is each prompt's value before this step
        stage.rewards.observe(batch.groups)
        stage.providers.fill(stage, batch, algorithm.methods())
        adv_NT, adv_N = credit_tokens(algorithm, batch)
        # before anything learns from them: one NaN would be in every weight after the update
        if problem := advantage_problem(algorithm, batch, adv_N):
            raise NumericsError(f"stage '{cfg.name}', step {state.step + 1}: {problem}")
        strategy = pipeline.collector.strategy
        if isinstance(strategy, RememberingStrategy):
            tell_strategy(strategy, batch, adv_N, version=stage.policy.version + 1)
        if keeper is not None:
            keeper.choose(batch, adv_NT, adv_N, step=state.step + 1, global_step=state.global_step + 1)
        values = describe(batch, adv_N, key=stage.label_key) | batch.measured | algorithm.duals()

    kept = batch.kept()
    # of all ranks: one without a row of its own still takes part in the others' update
    if not bool(batch.keep_N.any()):
        state.empty_in_row += 1
        if state.empty_in_row >= MAX_EMPTY_STEPS:
            raise NumericsError(
                f"stage '{cfg.name}': {MAX_EMPTY_STEPS} steps in a row without a trainable row; mean reward {values['reward']:.3f}; "
                "loosen `filters`, check the rewards with `vlmrl check`, or start from a model that can sometimes solve the task"
            )
        # applied: nothing to learn from is no update that went wrong, and those in a row end the run
        return StepResult(report=StepReport(applied=True, grad_norm=0.0, loss=0.0), values=values)
    state.empty_in_row = 0
    report = update(stage, cfg, algorithm, batch, kept, adv_NT, see=None if keeper is None else keeper.see)
    if report.applied:
        stage.weights_changed()
    return StepResult(report=report, values=values | {"loss": report.loss} | report.metrics)


def gather_groups(stage: Stage, cfg: GrpoSection, algorithm: Algorithm, pipeline: Pipeline) -> StepBatch:
    """Generate and score groups until enough of them pass the filters or the recipe's attempts are used up (`dynamic_sampling`).

    Groups beyond the wanted number are left out of the update, in plan order; they count in the ledger and in the log.

    Returns:
        The rollouts of all attempts, over all ranks, with the filters applied.
    """
    state, clock = stage.state, stage.clock
    groups: list[tuple[int, ScoredGroup]] = []
    wanted, generated, replayed, attempts = cfg.rollout.prompts_per_step, 0, 0, 0
    notes: Counter[str] = Counter()
    ask = wanted
    while True:
        # places count on over the attempts: they are coordinates of the seeds
        found, collected = pipeline.take(prompts=ask, first=generated)
        groups += found
        notes.update(collected.notes)
        generated, replayed, attempts = generated + ask, replayed + collected.replayed, attempts + 1
        with clock.phase("algorithm"):
            # of all groups so far and not of the new ones alone: a filter may look across the whole batch
            batch = StepBatch.of(groups, baseline=lambda i: state.ledger.row(i).mean, progress=state.step / cfg.steps)
            stage.providers.fill(stage, batch, algorithm.filters)
            select(algorithm.filters, batch)
        next_ = ONCE
        if cfg.dynamic_sampling.max_batches > 1:
            next_ = refill(
                wanted=wanted,
                kept=batch.kept_groups(),
                generated=generated,
                attempts=attempts,
                max_attempts=cfg.dynamic_sampling.max_batches,
                multiple=dist.world(),  # else some ranks would get a prompt more than others
            )
        if next_.stop is not None:
            if next_.surplus:
                batch.keep_first(wanted)
            batch.measured |= {"resume/replayed_groups": float(replayed), "rollout/attempts": float(attempts)}
            batch.measured |= pipeline.collector.measured(summed_notes(notes), step=state.step)
            if cfg.rollout.staleness:
                versions = [r.policy_version for _, scored in groups for r in scored.group.rollouts if r.on_policy]
                batch.measured["rollout/staleness"] = float(stage.policy.version - min(versions, default=stage.policy.version))
            return batch
        ask = next_.prompts


def update(
    stage: Stage, cfg: GrpoSection, algorithm: Algorithm, batch: StepBatch, kept: list[int], adv_NT: torch.Tensor, *, see: See | None = None
) -> StepReport:
    """Make `cfg.updates_per_step` optimizer steps over the kept rows; `see` is shown what their forward passes give.

    Old log-probs are recomputed by the trainer, in the same layout as the update, when there is more than one step; with one step the ratio
    is 1 by construction.

    Args:
        kept: this rank's rows that train, as places in `batch.rows`; none, and the rank still takes part.
        adv_NT: advantages per token of all of this rank's rows.

    Returns:
        Means over the optimizer steps; `applied` where all of them were.
    """
    learner, clock = stage.learner, stage.clock
    rows, rollouts = [batch.rows[n] for n in kept], [batch.rollouts[n] for n in kept]
    index, x = torch.tensor(kept, dtype=torch.int64), batch.x
    # columns are in three orders: `kept` counts this rank's rows, `mine` those of all ranks, `part` the rows that train
    mine = batch.mine[index]
    beta = algorithm.beta(cfg.beta)
    mask_NT, adv_NT = batch.mask_NT[index], adv_NT[index]
    sampled_NT, given_NT = sampler_logprobs(rollouts, mask_NT.shape[1])
    truth_N = torch.tensor([rollout.provenance == "ground_truth" for rollout in rollouts], dtype=torch.bool)
    with clock.phase("old_and_reference"):
        old_NT = score_rows(learner, rows) if cfg.updates_per_step > 1 else None
        # with `beta` 0 the reference is asked now and then all the same, for the curve
        measured = cfg.kl_every > 0 and stage.state.step % cfg.kl_every == 0
        compared = stage.reference is not None and (beta > 0 or measured or algorithm.needs("logp_ref_BT"))
        ref_NT = stage.score_reference(rows) if compared else None
    reports: list[StepReport] = []
    for part in minibatch_places(rows, cfg.updates_per_step):
        minibatch = Minibatch(
            rows=tuple(rows[n] for n in part),
            adv_NT=adv_NT[part],
            mask_NT=mask_NT[part],
            logp_old_NT=None if old_NT is None else old_NT[part],
            logp_ref_NT=None if ref_NT is None else ref_NT[part],
            logp_sampled_NT=sampled_NT[part],
            given_old_NT=given_NT[part] if bool(given_NT.isfinite().any()) else None,
            statistics_N=x.on_policy_N[mine][part],
            fields={"offpolicy_B": truth_N[part], "task_B": x.task_N[mine][part]},
            tasks=x.tasks,
            see=see,
        )
        with clock.phase("old_and_reference"):
            # here and not before the loop: losses need values under the weights that this update starts from
            minibatch = with_provided(stage, minibatch)
            objective = objective_of(learner, algorithm, minibatch, beta)
        stage.set_rate()
        faults.point("step.before_update")
        with clock.phase("forward_backward"):
            reports.append(optimizer_step(learner, minibatch, objective))
        stage.count(minibatch.rows)
    report = merge_reports(reports)
    for steer in algorithm.acting_on("beta"):  # moves on with what this step has measured, for the next one
        report.metrics["beta"] = beta
        steer.advance({"kl": PartialMean(report.metrics["kl"], 1)} if "kl" in report.metrics else {})
    return report


def with_provided(stage: Stage, batch: Minibatch) -> Minibatch:
    """Give the minibatch with what the recipe's methods need."""
    if not stage.providers.used:
        return batch
    return dataclasses.replace(batch, fields={**batch.fields, **stage.providers.of_minibatch(stage, batch)})


def tell_strategy(strategy: RememberingStrategy, batch: StepBatch, adv_N: torch.Tensor, *, version: int) -> None:
    """Tell a strategy with a memory what the step brought, on every rank alike. `version`: of the policy that the step makes."""
    x = batch.x
    # [N], the mean |advantage| of the sampled rows of each row's group
    worth_N = segments.mean(adv_N.abs(), x.group_N, x.valid_N & x.on_policy_N)
    by_place = dict(zip(x.group_N.tolist(), worth_N.tolist(), strict=True))
    everyone = sorted((item for of_rank in dist.gather(batch.groups) for item in of_rank), key=lambda item: item[0])
    groups = [scored for _, scored in everyone]
    strategy.observe(groups, [by_place[place] for place, _ in everyone], version=version)


def minibatch_places(rows: Sequence[Row], parts: int) -> list[list[int]]:
    """Deal rows to minibatches, as places; groups stay whole and are dealt in order."""
    groups = sorted({row.group for row in rows})
    size = -(-len(groups) // parts)  # rounded up
    chunks = [set(groups[i : i + size]) for i in range(0, len(groups), size)]
    # an update is made by all ranks together, so a rank with fewer groups makes as many, of nothing
    chunks += [set() for _ in range(parts - len(chunks))]
    return [[n for n, row in enumerate(rows) if row.group in chunk] for chunk in chunks]


def merge_reports(reports: Sequence[StepReport]) -> StepReport:
    """Average the reports of a step's minibatches."""
    names = {name for report in reports for name in report.metrics}
    return StepReport(
        applied=all(report.applied for report in reports),
        grad_norm=sum(report.grad_norm for report in reports) / len(reports),
        loss=sum(report.loss for report in reports) / len(reports),
        metrics={n: sum(r.metrics.get(n, 0.0) for r in reports) / len(reports) for n in sorted(names)},
        tokens=sum(report.tokens for report in reports),
    )
