"""The GRPO family: one step from data rows to a weight update, top to bottom.

Which rows, how their answers are made, scored, shaped, filtered, turned into advantages and into a loss are functions that the
recipe names; this file only moves the group between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl import faults, rng
from vlmrl.algo import registries
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.config.schema import GrpoSection, Method
from vlmrl.errors import NumericsError
from vlmrl.policy.pack import Row
from vlmrl.rewards.answer import parse
from vlmrl.rollout.collect import Collector
from vlmrl.rollout.journal import Journal
from vlmrl.train import dist
from vlmrl.train.clock import Clock
from vlmrl.train.stage.base import StageRun
from vlmrl.train.step import Minibatch, StepReport, optimizer_step, response_mask, score_rows
from vlmrl.types import Rollout, ScoredGroup

MAX_EMPTY_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The recipe's names as functions with their arguments."""

    shape: Sequence[Callable[..., torch.Tensor]]
    select: Sequence[Callable[..., Any]]
    advantage: Callable[[AdvantageInputs], torch.Tensor]
    credit: Callable[..., torch.Tensor]
    loss: Callable[..., Any]
    reducer: Callable[..., Any]
    kl: Callable[..., torch.Tensor]

    @staticmethod
    def bind(cfg: GrpoSection) -> Algorithm:
        def of(registry: Any, method: Method) -> Any:
            return registry.bind(method.name, method.arguments)

        return Algorithm(
            shape=[of(registries.shape, m) for m in cfg.shape],
            select=[of(registries.select, m) for m in cfg.select],
            advantage=of(registries.advantage, cfg.advantage),
            credit=of(registries.credit, cfg.credit),
            loss=of(registries.policy_loss, cfg.loss),
            reducer=of(registries.reducer, cfg.reduce),
            kl=of(registries.kl_estimator, cfg.kl),
        )


@dataclass(frozen=True, kw_only=True)
class RewardTable:
    """Rewards of all ranks as flat lists, groups in plan order; `mine` are the places of this rank's rows."""

    inputs: AdvantageInputs
    mine: list[int]
    weights_K: torch.Tensor


def reward_table(groups: Sequence[tuple[int, ScoredGroup]]) -> RewardTable:
    """Gather (place, rewards, lengths) of every rank's groups: advantages may rank across the whole batch."""
    local: list[tuple[Any, ...]] = []
    for place, scored in groups:
        pairs = zip(scored.scores.rewards_GK, scored.group.rollouts, strict=True)
        rows = [(row, rollout.on_policy, len(rollout.ids)) for row, rollout in pairs]
        local.append((place, dist.rank(), scored.group.prompt.sample.task, scored.scores.columns, scored.scores.weights, rows))
    everything = sorted((item for of_rank in dist.gather(local) for item in of_rank), key=lambda item: item[0])
    tasks = sorted({item[2] for item in everything})
    columns, weights = everything[0][3], everything[0][4]
    rewards: list[list[float]] = []
    group: list[int] = []
    task: list[int] = []
    on_policy: list[bool] = []
    length: list[int] = []
    mine: list[int] = []
    for place, origin, name, _, _, rows in everything:
        for row, sampled, tokens in rows:
            if origin == dist.rank():
                mine.append(len(rewards))
            rewards.append([float("nan") if r is None else r for r in row])
            group.append(place)
            task.append(tasks.index(name))
            on_policy.append(sampled)
            length.append(tokens)
    rewards_NK = torch.tensor(rewards, dtype=torch.float64).view(len(rewards), len(columns))
    weights_K = torch.tensor(weights, dtype=torch.float64)
    valid_N = (~rewards_NK.isnan()).any(dim=1)
    inputs = AdvantageInputs(
        reward_N=total(rewards_NK, weights_K),
        rewards_NK=rewards_NK,
        valid_N=valid_N,
        group_N=torch.tensor(group),
        task_N=torch.tensor(task),
        on_policy_N=torch.tensor(on_policy),
        length_N=torch.tensor(length),
        columns=tuple(columns),
    )
    return RewardTable(inputs=inputs, mine=mine, weights_K=weights_K)


def total(rewards_NK: torch.Tensor, weights_K: torch.Tensor) -> torch.Tensor:
    """Weighted sum over the judged columns, [N]; NaN where none was judged."""
    judged = ~rewards_NK.isnan()
    out = torch.where(judged, rewards_NK * weights_K, torch.zeros_like(rewards_NK)).sum(dim=1)
    return torch.where(judged.any(dim=1), out, torch.full_like(out, float("nan")))


def credit_tokens(algorithm: Algorithm, table: RewardTable, mask_NT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantage per token of this rank's rows [n, T], advantage per rollout of all ranks [N]). Shaping changes what the advantage
    sees, not what is logged."""
    import dataclasses

    x = table.inputs
    shaped_NK = x.rewards_NK
    for shape in algorithm.shape:
        shaped_NK = shape(shaped_NK, x.valid_N, x)
    x = dataclasses.replace(x, rewards_NK=shaped_NK, reward_N=total(shaped_NK, table.weights_K))
    adv_N = algorithm.advantage(x)
    mine = torch.tensor(table.mine, dtype=torch.int64)
    local = dataclasses.replace(
        x,
        reward_N=x.reward_N[mine],
        rewards_NK=x.rewards_NK[mine],
        valid_N=x.valid_N[mine],
        group_N=x.group_N[mine],
        task_N=x.task_N[mine],
        on_policy_N=x.on_policy_N[mine],
        length_N=x.length_N[mine],
    )
    return algorithm.credit(local, adv_N[mine], mask_NT), adv_N


def train(stage: StageRun, cfg: GrpoSection) -> None:
    """Run the stage from its current step to its end."""
    algorithm = Algorithm.bind(cfg)
    collector = stage.collector(cfg)
    while stage.state.step < cfg.steps:
        grpo_step(stage, cfg, algorithm, collector)


def grpo_step(stage: StageRun, cfg: GrpoSection, algorithm: Algorithm, collector: Collector) -> None:
    """Plan, roll out, score, select, credit, update, log."""
    state, clock = stage.state, stage.clock
    rng.seed_step(stage.seed, cfg.name, state.step)

    with stage.timed_feed(clock):
        taken = stage.feed.take(state.ledger, prompts=cfg.rollout.prompts, rollouts=cfg.rollout.per_prompt)
    journal = Journal(stage.journal_dir, state.global_step, dist.rank())
    collected = collector.collect([(place, prompt) for place, _, prompt in taken], step=state.step, journal=journal)
    clock.add("rollout", collected.rollout_seconds)
    clock.add("score", collected.score_seconds)
    faults.point("rollout.scored")

    with clock.phase("algorithm"):
        groups = [(place, scored) for (place, _, _), scored in zip(taken, collected.groups, strict=True)]
        stage.observe([scored for _, scored in groups])
        table = reward_table(groups)
        keep_N = torch.ones(len(table.inputs.reward_N), dtype=torch.bool)
        dropped: dict[str, float] = {}
        for select in algorithm.select:
            keep, reason = select(table.inputs)
            dropped[f"select/{reason}"] = float((keep_N & ~keep).sum()) / max(1, len(keep_N))
            keep_N &= keep
        rows = [
            Row(index=n, group=place, prompt=scored.group.prompt, response=rollout.ids)
            for n, (place, scored, rollout) in enumerate((p, s, r) for p, s in groups for r in s.group.rollouts)
        ]
        mask_NT = response_mask(rows)
        sampled_NT = sampled_logprobs([r for _, s in groups for r in s.group.rollouts], mask_NT.shape[1])
        adv_NT, adv_N = credit_tokens(algorithm, table, mask_NT)
        values = describe(groups, table, adv_N) | dropped | {"resume/replayed_groups": float(collected.replayed)}

    kept = [n for n, place in enumerate(table.mine) if keep_N[place]]
    if not bool(keep_N.any()):
        state.empty_in_row += 1
        if state.empty_in_row >= MAX_EMPTY_STEPS:
            raise NumericsError(
                f"stage '{cfg.name}': {MAX_EMPTY_STEPS} steps in a row without a trainable row; mean reward {values['reward']:.3f}; "
                "loosen `select`, check the rewards with `vlmrl check`, or start from a model that can sometimes solve the task"
            )
        stage.after_update(StepReport(applied=True, grad_norm=0.0, loss=0.0), cfg, values)
        return
    state.empty_in_row = 0
    report = update(stage, cfg, algorithm, clock, rows, kept, mask_NT, adv_NT, sampled_NT, table)
    stage.after_update(report, cfg, values | {"loss": report.loss} | report.metrics)


def update(
    stage: StageRun,
    cfg: GrpoSection,
    algorithm: Algorithm,
    clock: Clock,
    rows: Sequence[Row],
    kept: Sequence[int],
    mask_NT: torch.Tensor,
    adv_NT: torch.Tensor,
    sampled_NT: torch.Tensor,
    table: RewardTable,
) -> StepReport:
    """`cfg.minibatches` optimizer steps over the kept rows. Old log-probs are recomputed by the trainer, in the same layout as the
    update, when there is more than one step; with one step the ratio is 1 by construction."""
    learner = stage.learner
    chosen = [rows[n] for n in kept]
    places = torch.tensor(kept, dtype=torch.int64)
    with clock.phase("old_and_reference"):
        old_NT = score_rows(learner, chosen) if cfg.minibatches > 1 else None
        measured = cfg.kl_every > 0 and stage.state.step % cfg.kl_every == 0
        ref_NT = stage.score_reference(chosen) if cfg.beta > 0 or measured else None
    on_policy_N = table.inputs.on_policy_N[torch.tensor(table.mine, dtype=torch.int64)][places]
    reports: list[StepReport] = []
    for part in minibatch_places(chosen, cfg.minibatches):
        batch = Minibatch(
            rows=tuple(chosen[n] for n in part),
            adv_NT=adv_NT[places][part],
            mask_NT=mask_NT[places][part],
            logp_old_NT=None if old_NT is None else old_NT[part],
            logp_ref_NT=None if ref_NT is None else ref_NT[part],
            statistics_N=on_policy_N[part],
            logp_sampled_NT=sampled_NT[places][part],
        )
        stage.set_rate(cfg)
        faults.point("step.before_update")
        with clock.phase("forward_backward"):
            reports.append(
                optimizer_step(learner, batch, loss=algorithm.loss, reducer=algorithm.reducer, divergence=algorithm.kl, beta=cfg.beta)
            )
    return merge(reports)


def sampled_logprobs(rollouts: Sequence[Rollout], width: int) -> torch.Tensor:
    """What the sampler reported, [N, width]; NaN where nothing was sampled."""
    out = torch.full((len(rollouts), width), float("nan"))
    for n, rollout in enumerate(rollouts):
        out[n, : len(rollout.logprobs)] = torch.tensor(rollout.logprobs)
    return out


def minibatch_places(rows: Sequence[Row], parts: int) -> list[list[int]]:
    """Places of the rows of each minibatch; groups stay whole and are dealt in order."""
    groups = sorted({row.group for row in rows})
    size = -(-len(groups) // parts)
    chunks = [set(groups[i : i + size]) for i in range(0, len(groups), size)]
    chunks += [set() for _ in range(parts - len(chunks))]
    return [[n for n, row in enumerate(rows) if row.group in chunk] for chunk in chunks]


def merge(reports: Sequence[StepReport]) -> StepReport:
    """Means over the minibatches of a step."""
    names = {name for report in reports for name in report.metrics}
    return StepReport(
        applied=all(report.applied for report in reports),
        grad_norm=sum(report.grad_norm for report in reports) / len(reports),
        loss=sum(report.loss for report in reports) / len(reports),
        metrics={n: sum(r.metrics.get(n, 0.0) for r in reports) / len(reports) for n in sorted(names)},
        tokens=sum(report.tokens for report in reports),
    )


def describe(groups: Sequence[tuple[int, ScoredGroup]], table: RewardTable, adv_N: torch.Tensor) -> dict[str, float]:
    """Logged statistics over the on-policy rows of all ranks, under TRL's names where TRL has them."""
    x = table.inputs
    keep = x.on_policy_N & x.valid_N
    out: dict[str, float] = {}
    for k, column in enumerate(x.columns):
        value = x.rewards_NK[keep, k]
        out[f"rewards/{column}/mean"] = float(value[~value.isnan()].mean()) if bool((~value.isnan()).any()) else 0.0
    out["reward"] = float(x.reward_N[keep].mean()) if bool(keep.any()) else 0.0
    spreads = [x.reward_N[keep & (x.group_N == g)] for g in x.group_N.unique()]
    spreads = [s for s in spreads if len(s) > 1]
    out["reward_std"] = float(torch.stack([s.std() for s in spreads]).mean()) if spreads else 0.0
    out["frac_reward_zero_std"] = sum(float(s.max() == s.min()) for s in spreads) / max(1, len(spreads))
    out["completions/mean_length"] = float(x.length_N[x.on_policy_N].double().mean())
    out["advantage/offpolicy_mean"] = float(adv_N[~x.on_policy_N].mean()) if bool((~x.on_policy_N).any()) else 0.0
    centred = adv_N - adv_N.mean()
    spread = centred.pow(2).mean().sqrt()
    out["advantage/skewness"] = float(centred.pow(3).mean() / spread.pow(3)) if spread > 0 else 0.0
    counts = [0.0] * 5
    reasons: dict[str, int] = {}
    for _, scored in groups:
        for rollout in scored.group.rollouts:
            if rollout.on_policy:
                parsed = parse(rollout.text, scored.group.prompt.template)
                thought = parsed.thought is not None and bool(parsed.thought.strip())
                flags = (1.0, float(thought), float(rollout.finish == "length"), float(parsed.answer is not None), float(parsed.format_ok))
                counts = [a + b for a, b in zip(counts, flags, strict=True)]
        for reason, n in scored.scores.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
    summed = [sum(values) for values in zip(*dist.gather(counts), strict=True)]
    names = ("completions/think_rate", "completions/clipped_ratio", "completions/parse_rate", "completions/format_rate")
    out |= {name: value / max(1.0, summed[0]) for name, value in zip(names, summed[1:], strict=True)}
    for of_rank in dist.gather(reasons):
        for reason, n in of_rank.items():
            out[f"fault/reward/{reason}"] = out.get(f"fault/reward/{reason}", 0.0) + n
    return out
