"""The GRPO family: one step from data rows to a weight update, top to bottom.

Which rows, how their answers are made, scored, shaped, filtered, turned into advantages and into a loss are functions that the
recipe names; this file only moves the group between them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from vlmrl import faults, rng
from vlmrl.algo import behaviour
from vlmrl.algo.constraint import entropy_band
from vlmrl.algo.constraint.registry import Measured, merge
from vlmrl.algo.filter.selective_sample_buffer import priority
from vlmrl.algo.group_loss.two_pass import pass_weights, row_terms
from vlmrl.algo.level import SCORES
from vlmrl.config.schema import GrpoSection
from vlmrl.errors import NumericsError
from vlmrl.policy.average import answer_likelihood
from vlmrl.policy.pack import Row, response_ids, response_mask
from vlmrl.protocols import RememberingStrategy
from vlmrl.rollout.answer_span import answer_mask
from vlmrl.rollout.collect import Collector
from vlmrl.rollout.journal import Journal
from vlmrl.sampling.dynamic_sampling import refill
from vlmrl.train import dist
from vlmrl.train.objective import Band, GroupObjective, Objective, TokenObjective
from vlmrl.train.stage.algorithm import Algorithm, Selection, advance_dual, credit_tokens, dual_of
from vlmrl.train.stage.base import StageRun
from vlmrl.train.stage.describe import describe, summed_notes
from vlmrl.train.stage.table import RewardTable, reward_table
from vlmrl.train.step import Minibatch, StepReport, loss_inputs_of, optimizer_step, score_rows
from vlmrl.types import Rollout, ScoredGroup

MAX_EMPTY_STEPS = 20


@dataclass(kw_only=True)
class Batch:
    """The rollouts of a step on this rank, with the rewards of all ranks."""

    groups: list[tuple[int, ScoredGroup]]
    """(place in the plan, group)."""
    table: RewardTable
    chosen: Selection
    replayed: int
    attempts: int
    notes: dict[str, int]
    """What guidance cost on this rank (`Collected.notes`)."""


def train(stage: StageRun, cfg: GrpoSection) -> None:
    """Run the stage from its current step to its end."""
    algorithm = Algorithm.of(cfg)
    collector = stage.collector(cfg)
    while stage.state.step < cfg.steps:
        grpo_step(stage, cfg, algorithm, collector)


def grpo_step(stage: StageRun, cfg: GrpoSection, algorithm: Algorithm, collector: Collector) -> None:
    """Plan, roll out, score, select, credit, update, log."""
    state, clock = stage.state, stage.clock
    rng.seed_step(stage.seed, cfg.name, state.step)
    batch = gather_groups(stage, cfg, algorithm, collector)
    faults.point("rollout.scored")

    with clock.phase("algorithm"):
        stage.observe([scored for _, scored in batch.groups])
        rollouts = [rollout for _, scored in batch.groups for rollout in scored.group.rollouts]
        rows = [
            Row(index=n, group=place, prompt=scored.group.trained_under(rollout), response=rollout.ids)
            for n, (place, scored, rollout) in enumerate((p, s, r) for p, s in batch.groups for r in s.group.rollouts)
        ]
        mask_NT = response_mask(rows)
        ids_NT = response_ids(rows, mask_NT.shape[1])
        batch.table = with_consistency(stage, batch, rows, rollouts)
        adv_NT, adv_N = credit_tokens(algorithm, batch.table, batch.chosen, state, mask_NT, ids_NT)
        remember(stage, collector, batch, adv_N)
        values = describe(batch.groups, batch.table, adv_N) | batch.chosen.dropped
        values |= {"resume/replayed_groups": float(batch.replayed), "rollout/attempts": float(batch.attempts)}
        values |= summed_notes(batch.notes)
        values |= {f"dual/{c}/{name}": value for c, dual in state.duals.items() for name, value in dual.items()}

    keep_N = batch.chosen.keep_N
    kept = [n for n, place in enumerate(batch.table.mine) if keep_N[place]]
    kept = within_reach(stage, rows, rollouts, kept, mask_NT, values)
    if not bool(keep_N.any()):
        state.empty_in_row += 1
        if state.empty_in_row >= MAX_EMPTY_STEPS:
            raise NumericsError(
                f"stage '{cfg.name}': {MAX_EMPTY_STEPS} steps in a row without a trainable row; mean reward {values['reward']:.3f}; "
                "loosen `filters`, check the rewards with `vlmrl check`, or start from a model that can sometimes solve the task"
            )
        stage.after_update(StepReport(applied=True, grad_norm=0.0, loss=0.0), cfg, values)
        return
    state.empty_in_row = 0
    trained = Trained(rows=[rows[n] for n in kept], rollouts=[rollouts[n] for n in kept], places=kept, mask_NT=mask_NT, adv_NT=adv_NT)
    report = update(stage, cfg, algorithm, trained, batch.table)
    if report.applied:
        stage.follow()
    stage.after_update(report, cfg, values | {"loss": report.loss} | report.metrics)


def gather_groups(stage: StageRun, cfg: GrpoSection, algorithm: Algorithm, collector: Collector) -> Batch:
    """Generate and score groups until enough of them pass the filters or the recipe's attempts are used up (`dynamic_sampling`).

    Groups beyond the wanted number are left out of the update, in plan order; they count in the ledger and in the log.
    """
    state, clock = stage.state, stage.clock
    journal = Journal(stage.journal_dir, state.global_step, dist.rank())
    groups: list[tuple[int, ScoredGroup]] = []
    wanted, generated, replayed, attempts = cfg.rollout.prompts_per_step, 0, 0, 0
    notes: Counter[str] = Counter()
    ask = wanted
    while True:
        with stage.timed_feed(clock):
            taken = stage.feed.take(state.ledger, prompts=ask, rollouts=cfg.rollout.num_generations)
        places = [generated + place for place, _, _ in taken]
        collect = partial(
            collector.collect,
            [(place, prompt) for place, (_, _, prompt) in zip(places, taken, strict=True)],
            step=state.step,
            journal=journal,
            num_generations=[wish.num_generations for _, wish, _ in taken],
        )
        collected = dist.together(collect)  # a service that is down stops every rank, and none waits for one that has gone
        clock.add("rollout", collected.rollout_seconds)
        clock.add("score", collected.score_seconds)
        groups += zip(places, collected.groups, strict=True)
        notes.update(collected.notes)
        generated, replayed, attempts = generated + ask, replayed + collected.replayed, attempts + 1
        with clock.phase("algorithm"):
            table = reward_table(groups, baseline=lambda i: state.ledger.row(i).mean, progress=state.step / cfg.steps)
            chosen = Selection.of(algorithm, table.inputs)
        next_ = refill(
            wanted=wanted,
            kept=chosen.kept_groups(table.inputs),
            generated=generated,
            attempts=attempts,
            max_attempts=cfg.dynamic_sampling.max_batches,
            multiple=dist.world(),
        )
        if next_.stop is not None:
            chosen = chosen.first_groups(table.inputs, wanted) if next_.surplus else chosen
            return Batch(groups=groups, table=table, chosen=chosen, replayed=replayed, attempts=attempts, notes=dict(notes))
        ask = next_.prompts


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The rows of this rank that train, and the tensors of all its rows. `places`: where the former are in the latter."""

    rows: list[Row]
    rollouts: list[Rollout]
    places: list[int]
    mask_NT: torch.Tensor
    adv_NT: torch.Tensor


def update(stage: StageRun, cfg: GrpoSection, algorithm: Algorithm, trained: Trained, table: RewardTable) -> StepReport:
    """`cfg.updates_per_step` optimizer steps over the kept rows. Old log-probs are recomputed by the trainer, in the same layout as the
    update, when there is more than one step; with one step the ratio is 1 by construction."""
    learner, clock, rows = stage.learner, stage.clock, trained.rows
    index = torch.tensor(trained.places, dtype=torch.int64)
    mine = torch.tensor(table.mine, dtype=torch.int64)[index]
    x = table.inputs
    beta = beta_of(stage, cfg, algorithm)
    mask_NT, adv_NT = trained.mask_NT[index], trained.adv_NT[index]
    sampled_NT, given_NT = sampler_logprobs(trained.rollouts, mask_NT.shape[1])
    truth_N = torch.tensor([rollout.provenance == "ground_truth" for rollout in trained.rollouts], dtype=torch.bool)
    with clock.phase("old_and_reference"):
        old_NT = score_rows(learner, rows) if cfg.updates_per_step > 1 else None
        measured = cfg.kl_every > 0 and stage.state.step % cfg.kl_every == 0
        ref_NT = stage.score_reference(rows) if stage.reference is not None and (beta > 0 or measured) else None
    reports: list[StepReport] = []
    for part in minibatch_places(rows, cfg.updates_per_step):
        batch = Minibatch(
            rows=tuple(rows[n] for n in part),
            adv_NT=adv_NT[part],
            mask_NT=mask_NT[part],
            logp_old_NT=None if old_NT is None else old_NT[part],
            logp_ref_NT=None if ref_NT is None else ref_NT[part],
            logp_sampled_NT=sampled_NT[part],
            given_old_NT=given_NT[part] if bool(given_NT.isfinite().any()) else None,
            statistics_N=x.on_policy_N[mine][part],
            offpolicy_N=truth_N[part],
        )
        with clock.phase("old_and_reference"):
            batch = with_score_means(stage, algorithm, batch)
            objective = objective_of(stage, algorithm, batch, beta, x.task_N[mine][part], x.tasks)
        stage.set_rate(cfg)
        faults.point("step.before_update")
        with clock.phase("forward_backward"):
            reports.append(optimizer_step(learner, batch, objective))
        stage.count(batch.rows)
    report = merge_reports(reports)
    steer = algorithm.acting_on("beta")
    if steer is not None:
        report.metrics["beta"] = beta
        seen = {"kl": Measured(report.metrics["kl"], 1)} if "kl" in report.metrics else {}
        advance_dual(stage.state, steer, seen)
    return report


def beta_of(stage: StageRun, cfg: GrpoSection, algorithm: Algorithm) -> float:
    """Weight of the divergence in this step: the recipe's, or the one that a constraint steers."""
    steer = algorithm.acting_on("beta")
    return cfg.beta if steer is None else dual_of(stage.state, steer)["kl"]


def with_score_means(stage: StageRun, algorithm: Algorithm, batch: Minibatch) -> Minibatch:
    """For a loss that compares a row's score with its group's mean: that mean, over the minibatch of all ranks, under current weights.

    The scores are log-ratios: while old and current policy are the same they are 0 and nothing has to run.
    """
    score = algorithm.loss.extra.get("score")
    if score is None or algorithm.group_loss is not None:
        return batch
    if batch.logp_old_NT is None:
        return dataclasses.replace(batch, score_mean_N=torch.zeros(len(batch.rows)))
    local = SCORES[score](loss_inputs_of(batch, score_rows(stage.learner, batch.rows)))
    pairs = [(row.group, float(value)) for row, value in zip(batch.rows, local, strict=True)]
    sums: dict[int, list[float]] = {}
    for group, value in (pair for of_rank in dist.gather(pairs) for pair in of_rank):
        sums.setdefault(group, []).append(value)
    return dataclasses.replace(batch, score_mean_N=torch.tensor([sum(sums[r.group]) / len(sums[r.group]) for r in batch.rows]))


def objective_of(
    stage: StageRun, algorithm: Algorithm, batch: Minibatch, beta: float, task_N: torch.Tensor, tasks: tuple[str, ...]
) -> Objective:
    """What this minibatch minimises. Losses that need to see the whole minibatch first get their pass without gradient here."""
    if algorithm.group_loss is not None:
        return group_objective(stage, algorithm, batch)
    return TokenObjective(
        loss=algorithm.loss.call,
        reducer=algorithm.reducer.call,
        divergence=algorithm.kl.call,
        divergence_needs_old="logp_old_BT" in algorithm.kl.needs,
        beta=beta,
        importance_correction=algorithm.importance_correction.call if algorithm.importance_correction.name != "none" else None,
        band=entropy_band_of(stage, algorithm, batch, task_N, tasks),
    )


def group_objective(stage: StageRun, algorithm: Algorithm, batch: Minibatch) -> GroupObjective:
    """First pass of a loss that compares rollouts: scores of all ranks without gradient, and the loss's derivatives by them."""
    assert algorithm.group_loss is not None
    score, divergence = algorithm.score_of_group_loss()
    x = loss_inputs_of(batch, score_rows(stage.learner, batch.rows))
    terms = row_terms(x, score=score, divergence=divergence)
    advantage = torch.where(x.mask_BT, x.adv_BT, torch.zeros_like(x.adv_BT)).sum(dim=1) / x.mask_BT.sum(dim=1).clamp(min=1)
    vectors = (terms.score_B, advantage, x.group_B, terms.kl_B, terms.tokens_B)
    mine = list(zip(*(vector.tolist() for vector in vectors), strict=True))
    ranks = dist.gather(mine)
    everyone = [row for of_rank in ranks for row in of_rank]
    columns = [torch.tensor(c, dtype=torch.float64) for c in zip(*everyone, strict=True)]
    s, a, g, kl, n = columns if columns else [torch.zeros(0, dtype=torch.float64)] * 5
    weights = pass_weights(algorithm.group_loss.call, s, a, g.long(), kl, n.long())
    first = sum(len(of_rank) for of_rank in ranks[: dist.rank()])
    own = slice(first, first + len(mine))
    kl_own = None if weights.kl_N is None else weights.kl_N[own].float()
    return GroupObjective(weights=weights._replace(score_N=weights.score_N[own].float(), kl_N=kl_own), score=score, divergence=divergence)


def entropy_band_of(stage: StageRun, algorithm: Algorithm, batch: Minibatch, task_N: torch.Tensor, tasks: tuple[str, ...]) -> Band | None:
    """Slopes of the entropy band at the weights that this update starts from."""
    band = algorithm.acting_on("loss")
    if band is None:
        return None
    logp_NT = score_rows(stage.learner, batch.rows)
    counted_NT = batch.mask_NT[:, : logp_NT.shape[1]]
    seen = merge(dist.gather(entropy_band.measure(logp_NT, counted_NT, task_N, tasks)))
    slopes = band.call({}, seen)
    stage.state.duals[band.name] = slopes
    return Band(tasks=tasks, task_N=task_N, slopes=slopes, measured=seen)


def sampler_logprobs(rollouts: Sequence[Rollout], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the sampler reported, [N, width] each, NaN elsewhere: (of rows that train under the prompt and policy that sampled them,
    of rows whose ratio is taken against it).

    A row that was sampled under a hint and trains without it, or was sampled long ago, has no log-prob to compare with the trainer's.
    """
    sampled, given = (torch.full((len(rollouts), width), float("nan")) for _ in range(2))
    for n, rollout in enumerate(rollouts):
        values = torch.tensor(rollout.logprobs)
        moved = rollout.guidance is not None and rollout.guidance.train == "plain"
        if rollout.old_from_sampler:
            given[n, : len(values)] = values
        elif not moved:
            sampled[n, : len(values)] = values
    return sampled, given


def within_reach(
    stage: StageRun, rows: Sequence[Row], rollouts: Sequence[Rollout], kept: list[int], mask_NT: torch.Tensor, values: dict[str, float]
) -> list[int]:
    """The kept rows without those that a hint made and that the policy finds too unlikely without it (`behaviour.out_of_reach`)."""
    width = mask_NT.shape[1]
    guided = [n for n in kept if rollouts[n].old_from_sampler and rollouts[n].provenance == "guided"]
    counts = [0.0, 0.0, 0.0]
    if guided:
        logp_NT = score_rows(stage.learner, [rows[n] for n in guided])
        _, old_NT = sampler_logprobs([rollouts[n] for n in guided], width)
        mask = mask_NT[torch.tensor(guided)][:, : logp_NT.shape[1]]
        old_NT = old_NT[:, : logp_NT.shape[1]]
        far_N = behaviour.out_of_reach(logp_NT, old_NT, mask, torch.ones(len(guided), dtype=torch.bool))
        counts = [float(len(guided)), float(far_N.sum()), float(behaviour.mean_ratio(logp_NT, old_NT, mask).sum())]
        far = {n for n, is_far in zip(guided, far_N.tolist(), strict=True) if is_far}
        kept = [n for n in kept if n not in far]
    total, dropped, ratio = (sum(values) for values in zip(*dist.gather(counts), strict=True))
    if total:
        values |= {"guidance/out_of_reach": dropped, "guidance/mean_ratio": ratio / total}
    return kept


def with_consistency(stage: StageRun, batch: Batch, rows: Sequence[Row], rollouts: Sequence[Rollout]) -> RewardTable:
    """The table with the likelihood of each answer under the averaged reference, where the stage keeps one."""
    if stage.average is None:
        return batch.table
    answer_formats = [scored.group.prompt.answer_format for _, scored in batch.groups for _ in scored.group.rollouts]
    logp_NT = stage.score_reference(rows)
    mask_NT = answer_mask(rollouts, answer_formats, stage.policy.bundle.decode)[:, : logp_NT.shape[1]]
    mine = dict(zip(batch.table.mine, answer_likelihood(logp_NT, mask_NT).tolist(), strict=True))
    everyone = {place: value for of_rank in dist.gather(mine) for place, value in of_rank.items()}
    consistency_N = torch.tensor([everyone[place] for place in sorted(everyone)], dtype=torch.float64)
    inputs = dataclasses.replace(batch.table.inputs, consistency_N=consistency_N)
    return dataclasses.replace(batch.table, inputs=inputs)


def remember(stage: StageRun, collector: Collector, batch: Batch, adv_N: torch.Tensor) -> None:
    """Tell a strategy with a memory what the step brought, on every rank alike, and keep its state."""
    if not isinstance(collector.strategy, RememberingStrategy):
        return
    x = batch.table.inputs
    worth_N = priority(adv_N, x.group_N, x.valid_N & x.on_policy_N)
    by_place = dict(zip(x.group_N.tolist(), worth_N.tolist(), strict=True))
    everyone = sorted((item for of_rank in dist.gather(batch.groups) for item in of_rank), key=lambda item: item[0])
    groups = [scored for _, scored in everyone]
    collector.strategy.observe(groups, [by_place[place] for place, _ in everyone], version=stage.policy.version + 1)
    stage.state.strategy = collector.strategy.state_dict()


def minibatch_places(rows: Sequence[Row], parts: int) -> list[list[int]]:
    """Places of the rows of each minibatch; groups stay whole and are dealt in order."""
    groups = sorted({row.group for row in rows})
    size = -(-len(groups) // parts)
    chunks = [set(groups[i : i + size]) for i in range(0, len(groups), size)]
    chunks += [set() for _ in range(parts - len(chunks))]
    return [[n for n, row in enumerate(rows) if row.group in chunk] for chunk in chunks]


def merge_reports(reports: Sequence[StepReport]) -> StepReport:
    """Means over the minibatches of a step."""
    names = {name for report in reports for name in report.metrics}
    return StepReport(
        applied=all(report.applied for report in reports),
        grad_norm=sum(report.grad_norm for report in reports) / len(reports),
        loss=sum(report.loss for report in reports) / len(reports),
        metrics={n: sum(r.metrics.get(n, 0.0) for r in reports) / len(reports) for n in sorted(names)},
        tokens=sum(report.tokens for report in reports),
    )
