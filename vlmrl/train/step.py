"""One optimizer step: micro-batches, gradient sum over ranks, the finite gate, and the update; its learning rate.

The loss of a row is divided by denominators that are counted over the whole step and all ranks before the first forward, so any
split into micro-batches or ranks gives the same gradient up to summation order. Weights change only if loss and gradient are
finite on every rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch

from vlmrl.algo.behaviour import old_logprobs
from vlmrl.algo.inputs import LossInputs
from vlmrl.errors import NumericsError
from vlmrl.policy.forward import Layout, TokenLogprobs, layout_of
from vlmrl.policy.head import TokenStat
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import Row, response_mask, to_device
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.mismatch import MOST, gaps
from vlmrl.train import dist
from vlmrl.train.memory_ledger import MemoryLedger
from vlmrl.train.passes import Micro, ModelPass, passes_of
from vlmrl.train.updates import Complete, Updates

if TYPE_CHECKING:
    from vlmrl.config.section import OptimSection

T = TypeVar("T")
_FIELDS = {one.name for one in dataclasses.fields(LossInputs)}
MAX_OOM_RETRIES = 3
Number = float | torch.Tensor
"""Of the host, or of one element on a device that nobody has waited for."""
Sums = dict[str, tuple[Number, Number]]
"""Metric -> (sum, count)."""


@dataclass(kw_only=True)
class Learner:
    """The policy with everything that an update needs."""

    policy: Policy
    vision: VisionCache
    updates: Updates
    named: list[tuple[str, torch.nn.Parameter]]
    max_grad_norm: float
    max_tokens_per_microbatch: int
    layout: str = "shared_prefix"
    temperature: float = 1.0
    forbidden: tuple[int, ...] = ()
    checkpointing: bool = False
    """Recompute activations in backward; transformers does so only for modules in training mode."""
    around: Callable[[Policy], AbstractContextManager[Any]] | None = None
    """Context of every forward pass that a backward follows, where its activations shall wait for that elsewhere."""
    entropy_gradient: bool = False
    """Whether a loss needs entropies that it can differentiate (`entropy_BT`)."""
    stats: Mapping[str, TokenStat] = field(default_factory=dict[str, TokenStat])
    """Quantities of the logits that losses need, by the names of these needs."""
    rehearse: bool = False
    """Whether the next step begins with a rehearsal of its largest micro-batch (`rehearse`); it is once per stage."""

    rehearse_rollout: bool = False
    """Whether the next rollout begins with a rehearsal of the largest one (`train.pipeline`); it is once per stage."""
    memory: MemoryLedger = field(default_factory=MemoryLedger)
    """What each phase of a step takes of the device's memory."""

    @property
    def recovers(self) -> bool:
        """Whether a step that ran out of memory can be tried again: not where another rank may wait in the middle of a forward pass."""
        return self.updates.recovers and self.policy.sequence is None


@dataclass(frozen=True, kw_only=True)
class MicroSlices:
    """Values of a micro-batch's rows for statistics, beside the inputs of the loss."""

    place_B: torch.Tensor
    """Place of each row in the minibatch."""
    counted_BT: torch.Tensor
    """Tokens that enter logged statistics."""
    sampled_BT: torch.Tensor | None
    """Log-probs that the sampler reported; NaN where nothing was sampled."""


class Objective(Protocol):
    """The objective of one update. It is called once per micro-batch; the sum over all micro-batches and ranks has the gradient of the
    whole step, whatever the split."""

    def total(self, mask_NT: torch.Tensor) -> float:
        """Compute the denominator of the whole step over all ranks, from this rank's mask. Called on every rank."""
        ...

    def __call__(self, x: LossInputs, slices: MicroSlices, total: float) -> tuple[torch.Tensor, Sums]:
        """Compute a micro-batch's share: (scalar to differentiate, metrics as sums and counts)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    """The batch of one update: this rank's rows with flat [N, T] tensors, right-padded like the responses."""

    rows: tuple[Row, ...]
    adv_NT: torch.Tensor
    mask_NT: torch.Tensor
    logp_old_NT: torch.Tensor | None = None
    """None: the update is the first on these rollouts, and old = current without gradient (the ratio is exactly 1)."""
    logp_ref_NT: torch.Tensor | None = None
    logp_sampled_NT: torch.Tensor | None = None
    """What the sampler reported (NaN where nothing was sampled): its gap to the trainer's old log-probs is measured at every step."""
    statistics_N: torch.Tensor | None = None
    """Rows that count in logged statistics (on-policy ones); None: all."""
    given_old_NT: torch.Tensor | None = None
    """Old log-probs that come with the rows (replayed and some guided ones); NaN where they are the policy's own."""
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Further fields of `LossInputs` under their names there (`offpolicy_B`, `task_B`), for all rows: [N] or [N, T]. Others go to its
    `provided`."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks, by the ids in `task_B`."""
    see: Callable[[Sequence[Row], LossInputs], None] | None = None
    """Looks at what each micro-batch's forward gave; after out of memory it is shown some again."""


@dataclass(kw_only=True)
class StepReport:
    """Result of an optimizer step, or the average of several. `metrics` are means over all ranks."""

    applied: bool
    grad_norm: float
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    """Tokens through the model on this rank, padding included."""


@dataclass(frozen=True)
class TokenScores:
    """Values per response token without gradient, float32 [N, T], 0 outside the responses."""

    logp_NT: torch.Tensor
    entropy_NT: torch.Tensor
    stats: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """[N, T] of each of the `stats` that were asked for."""


@torch.no_grad()
def score_tokens(
    learner: Learner,
    rows: Sequence[Row],
    *,
    policy: Policy | None = None,
    vision: VisionCache | None = None,
    stats: Mapping[str, TokenStat] | None = None,
) -> TokenScores:
    """Compute log-probs and entropies of all rows, and `stats`: under the policy, or under another one that is given."""
    if policy is not None:  # experts that the learner took say nothing of another policy's
        rows = [dataclasses.replace(row, routes=()) for row in rows]
    policy, vision, stats = policy or learner.policy, vision or learner.vision, stats or {}
    out = [torch.zeros(response_mask(rows).shape) for _ in range(2 + len(stats))]  # apart: a view would be sent with all of them
    layout = layout_of(policy, learner.layout)
    own = _numbered(layout, rows, learner.max_tokens_per_microbatch)
    for (n, part), turns in passes_of(policy, vision, own, train=False):
        batch = layout.pack(part, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        how = {"temperature": learner.temperature, "forbidden": learner.forbidden, "train": False, "stats": stats}
        for turn in turns:
            scored = turn.forward(layout, policy, batch, **how)
            if not turn.own or not len(n):
                continue
            width = scored.logp_BT.shape[1]
            for all_NT, value_BT in zip(out, torch.stack(scored.tensors()).cpu(), strict=True):  # stacked: one copy to the host
                all_NT[n, :width] = value_BT
    return TokenScores(out[0], out[1], dict(zip(stats, out[2:], strict=True)))


def score_rows(learner: Learner, rows: Sequence[Row], *, policy: Policy | None = None, vision: VisionCache | None = None) -> torch.Tensor:
    """Compute log-probs of all rows without gradient: old log-probs, or the reference's when its policy is given.

    Returns:
        [N, T] float32, in nats, on the CPU; 0 outside the responses.
    """
    return score_tokens(learner, rows, policy=policy, vision=vision).logp_NT


def _numbered(layout: Layout, rows: Sequence[Row], budget: int) -> list[tuple[torch.Tensor, list[Row]]]:
    """Split rows into micro-batches, each with the places of its rows in `rows`."""
    return [(torch.tensor(places), [rows[place] for place in places]) for places in layout.split(rows, budget)]


def optimizer_step(learner: Learner, batch: Minibatch, objective: Objective) -> StepReport:
    """Accumulate the gradient of the objective over the minibatch and apply it.

    Out of memory on any rank: all ranks halve their token budget and start the step again, at most three times. Where that cannot be done
    (`Learner.recovers`) it is an error at once.

    Returns:
        `applied` is False where loss or gradient was not finite on some rank; weights are then unchanged on all.

    Raises:
        NumericsError: out of memory even at an eighth of the budget.
    """
    if learner.rehearse:
        _until_it_fits(learner, lambda: rehearse(learner, batch.rows))
        learner.rehearse = False
    with learner.memory.phase("forward_backward"):
        seen, tokens = _until_it_fits(learner, lambda: _accumulate(learner, batch, objective))
    with learner.memory.phase("update"):
        return _apply(learner, seen, tokens)


def rehearse(learner: Learner, rows: Sequence[Row]) -> None:
    """Forward and backward of this rank's largest micro-batch, beside gradients and moments as they are there from the second step on, so
    that too little memory shows before anything is accumulated. Every rank takes part where a pass is a collective.

    Its gradient is multiplied by 0 and dropped, features are put into no cache, and nothing is counted: training is not changed by a bit.
    """
    layout, policy = layout_of(learner.policy, learner.layout), learner.policy
    own = _numbered(layout, rows, learner.max_tokens_per_microbatch)
    cpu, pad = torch.device("cpu"), policy.bundle.end_ids[0]
    # packed on the host to be counted: what a layout makes of rows, it alone knows
    largest = max(own, key=lambda part: layout.pack(part[1], policy.positions, cpu, pad_id=pad).tokens, default=None)
    devices = [policy.device] if policy.device.type == "cuda" else []
    vision = learner.vision.twin()
    # so that dropout draws in the step what it would have drawn without the rehearsal
    with torch.random.fork_rng(devices=devices), learner.updates.occupied():
        for (_, part), turns in passes_of(policy, vision, [] if largest is None else [largest], train=True):
            micro = layout.pack(part, policy.positions, policy.device, pad_id=pad)
            for turn in turns:
                scored = _forward(learner, layout, micro, turn)
                _backward(learner, scored.nothing(), last=False, complete=turn.complete)


def _until_it_fits(learner: Learner, passes: Callable[[], T]) -> T:
    """Call `passes`, and again on all ranks with half of the token budget where one ran out of memory.

    Raises:
        NumericsError: out of memory even at an eighth of the budget, or with an engine that cannot go back.
    """
    for _ in range(MAX_OOM_RETRIES + 1 if learner.recovers else 1):
        learner.updates.zero()  # gradients of an attempt that ran out of memory half-way
        found: list[T] = []
        learner.policy.model.train(learner.checkpointing)
        try:
            found.append(passes())
        except torch.OutOfMemoryError as error:
            if not learner.recovers:  # the others wait in the middle of a forward pass, and none can go back
                raise _too_large(learner) from error
        finally:
            learner.policy.model.eval()
        if not learner.recovers or all(dist.gather(bool(found))):  # all ranks repeat the step or none: budgets stay equal
            return found[0]
        learner.max_tokens_per_microbatch = max(1, learner.max_tokens_per_microbatch // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    raise _too_large(learner)


def _too_large(learner: Learner) -> NumericsError:
    how = "down to" if learner.recovers else "at"
    return NumericsError(
        f"out of memory with max_tokens_per_microbatch {how} {learner.max_tokens_per_microbatch}; "
        f"lower {'' if learner.recovers else 'it, '}rollout.max_new_tokens or media.max_pixels"
    )


def _accumulate(learner: Learner, batch: Minibatch, objective: Objective) -> tuple[list[Sums], int]:
    """Run forward and backward of every micro-batch. Returns what the metrics of each are made from, and the tokens through the model."""
    total = objective.total(batch.mask_NT)  # of the whole step and all ranks, so that no split changes the gradient
    seen: list[Sums] = []
    tokens = 0
    layout, policy = layout_of(learner.policy, learner.layout), learner.policy
    own = _numbered(layout, batch.rows, learner.max_tokens_per_microbatch)
    for (n, part), turns in passes_of(policy, learner.vision, own, train=True):
        micro = layout.pack(part, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        tokens += micro.tokens
        for turn in turns:
            scored = _forward(learner, layout, micro, turn)
            if not turn.own or not len(n):
                # rows of another rank, or none: their backward pass is made of collectives, so every rank runs one
                scalar = scored.nothing()
            else:
                x, slices = loss_inputs(batch, n, scored), _slices(batch, n, micro)
                scalar, metrics = objective(x, slices, total)
                seen.append(_counted(x, slices, micro, scalar, metrics))
                if batch.see is not None:
                    batch.see(part, x)
            _backward(learner, scalar, last=turn.complete.rest, complete=turn.complete)
    return seen, tokens


def _forward(learner: Learner, layout: Layout, micro: Micro, turn: ModelPass) -> TokenLogprobs:
    """Run the forward pass of a micro-batch that a backward follows."""
    how = {"temperature": learner.temperature, "forbidden": learner.forbidden, "entropy_gradient": learner.entropy_gradient}
    with nullcontext() if learner.around is None else learner.around(learner.policy):
        return turn.forward(layout, learner.policy, micro, train=True, stats=learner.stats, **how)


def _counted(x: LossInputs, slices: MicroSlices, micro: Micro, scalar: torch.Tensor, metrics: Sums) -> Sums:
    """Collect what is logged of a micro-batch, detached, so that no graph outlives its backward."""
    assert x.entropy_BT is not None
    own: Sums = {"loss": (scalar, 0.0), "entropy": masked_sum(x.entropy_BT, slices.counted_BT)}  # count 0: `_apply` takes the sum
    out = own | metrics | getattr(micro, "measured", {})
    if slices.sampled_BT is not None:
        out |= _gap(x.logp_old_BT, slices.sampled_BT)
        out |= gaps(x.logp_old_BT, slices.sampled_BT, [row.prompt for row in micro.rows], [row.turn for row in micro.rows])
    return {name: (_detached(number), _detached(of)) for name, (number, of) in out.items()}


def _detached(number: Number) -> Number:
    return number.detach() if isinstance(number, torch.Tensor) else number


def _backward(learner: Learner, scalar: torch.Tensor, *, last: bool, complete: Complete) -> None:
    """Add the gradient of one pass."""
    if scalar.requires_grad:  # not for rows without media where only the tower or its projector trains
        learner.updates.backward(scalar, last=last, complete=complete)


def loss_inputs(batch: Minibatch, n: torch.Tensor | slice, scored: TokenLogprobs) -> LossInputs:
    """Make the inputs of the losses for some rows of a minibatch, from what a forward pass gave for them.

    Args:
        n: places of the rows in the minibatch.
        scored: their values; everything else is cut to the width of these and goes to their device.
    """
    logp_BT = scored.logp_BT
    width, device = logp_BT.shape[1], logp_BT.device

    def cut(value: torch.Tensor, *, tokens: bool = True) -> torch.Tensor:
        return to_device(value[n, :width] if tokens else value[n], device)

    old_BT = logp_BT.detach() if batch.logp_old_NT is None else cut(batch.logp_old_NT)  # detached: ratio 1, gradient of logp
    if batch.given_old_NT is not None:
        old_BT = old_logprobs(cut(batch.given_old_NT), old_BT)
    fields = {name: cut(value, tokens=name.endswith("T")) for name, value in batch.fields.items()}
    own = {name: value for name, value in fields.items() if name in _FIELDS}
    return LossInputs(
        logp_BT=logp_BT,
        logp_old_BT=old_BT,
        logp_ref_BT=None if batch.logp_ref_NT is None else cut(batch.logp_ref_NT),
        adv_BT=cut(batch.adv_NT).to(logp_BT.dtype),
        mask_BT=cut(batch.mask_NT),
        group_B=cut(torch.tensor([row.group for row in batch.rows], dtype=torch.int64), tokens=False),
        entropy_BT=scored.entropy_BT,
        tasks=batch.tasks,
        **own,
        provided={**{name: value for name, value in fields.items() if name not in own}, **scored.stats},
    )


def scored_inputs(learner: Learner, batch: Minibatch) -> LossInputs:
    """Make the inputs of a whole minibatch, with a forward pass without gradient."""
    scores = score_tokens(learner, batch.rows, stats=learner.stats)
    return loss_inputs(batch, slice(None), TokenLogprobs(logp_BT=scores.logp_NT, entropy_BT=scores.entropy_NT, stats=scores.stats))


def _slices(batch: Minibatch, n: torch.Tensor, micro: Micro) -> MicroSlices:
    device, width = micro.mask_BT.device, micro.mask_BT.shape[1]
    counted_BT = micro.mask_BT if batch.statistics_N is None else micro.mask_BT & to_device(batch.statistics_N[n, None], device)
    sampled = batch.logp_sampled_NT
    return MicroSlices(place_B=n, counted_BT=counted_BT, sampled_BT=None if sampled is None else to_device(sampled[n, :width], device))


def _gap(logp_BT: torch.Tensor, sampled_BT: torch.Tensor) -> Sums:
    """Sum |trainer - sampler| log-prob, and the low-variance estimate of KL(sampler || trainer), over sampled tokens, with their count."""
    known = sampled_BT.isfinite()  # NaN: not sampled
    gap = torch.where(known, logp_BT.detach() - sampled_BT, torch.zeros_like(sampled_BT))
    of = known.sum()
    # E_sampler[r - 1 - log r] with r = p_trainer / p_sampler: never negative, unlike the mean of -log r
    return {"sampling/logp_gap": (gap.abs().sum(), of), "sampling/kl": ((torch.expm1(gap.clamp(max=MOST)) - gap).sum(), of)}


def read(numbers: Sequence[Number]) -> list[float]:
    """Read numbers as floats, in order, with one wait for the device however many there are. Nothing is rounded or added up before."""
    there = [x.detach().reshape(()).double() for x in numbers if isinstance(x, torch.Tensor) and x.device.type != "cpu"]
    waited = iter(torch.stack(there).tolist() if there else [])
    return [next(waited) if isinstance(x, torch.Tensor) and x.device.type != "cpu" else float(x) for x in numbers]


def _summed(parts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Add the sums and counts of each metric, in the order of the parts."""
    out: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (number, of) in part.items():
            before = out.get(name, (0.0, 0.0))
            out[name] = (before[0] + number, before[1] + of)
    return out


def _apply(learner: Learner, seen: Sequence[Sums], tokens: int) -> StepReport:
    """Sum gradients over ranks, clip, check that everything is finite everywhere, update. Here the host waits, once."""
    norm, *numbers = read([learner.updates.finish(learner.max_grad_norm), *(x for sums in seen for pair in sums.values() for x in pair)])
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    # not strict: `pairs` is one iterator over all micro-batches, and each takes as many as it has names
    mine = _summed([dict(zip(sums, pairs, strict=False)) for sums in seen])
    ranks = dist.gather((mine, math.isfinite(norm)))
    merged = _summed([of_rank for of_rank, _ in ranks])
    # a sum and no mean: every micro-batch has divided by the denominator of the whole step
    loss = merged.pop("loss", (0.0, 0.0))[0]  # on every rank the same
    metrics = {name: number / of for name, (number, of) in merged.items() if of > 0}
    finite = math.isfinite(loss) and all(finite for _, finite in ranks)  # the same on every rank: all update, or none
    if finite:
        learner.updates.apply()
        learner.policy.version += 1
        learner.policy.vision_version += int(learner.policy.vision_trains)
    learner.updates.zero()
    return StepReport(applied=finite, grad_norm=norm, loss=loss, metrics=metrics, tokens=tokens)


def masked_sum(value_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over a mask, without gradient.

    Returns:
        (sum, count), scalars on the device of the values.
    """
    return torch.where(mask_BT, value_BT.detach(), torch.zeros_like(value_BT)).sum(), mask_BT.sum()


def learning_rate(step: int, total: int, *, peak: float, schedule: Literal["constant", "linear", "cosine"], warmup: float) -> float:
    """Give the rate of the update that follows `step` finished updates: linear warm-up over `warmup * total`, then the schedule to zero."""
    rising = round(warmup * total)
    if step < rising:
        return peak * (step + 1) / rising  # + 1: an update at rate 0 would be one for nothing
    if schedule == "constant":
        return peak
    done = (step - rising) / max(1, total - rising)
    return peak * (1 - done) if schedule == "linear" else peak * 0.5 * (1 + math.cos(math.pi * done))


def set_rates(optimizer: Any, cfg: OptimSection, shape: Callable[[float], float]) -> None:
    """Set the learning rate of every group. `shape`: peak -> rate of the coming update."""
    for group in optimizer.param_groups:
        group["lr"] = shape(cfg.parts.rates[group["part"]] if "part" in group else cfg.lr)


def rates(optimizer: Any) -> dict[str, float]:
    """Read the learning rates for the log: `lr`, and `lr/<part>` of parts with one of their own."""
    groups = optimizer.param_groups
    return {"lr": float(groups[0]["lr"])} | {f"lr/{group['part']}": float(group["lr"]) for group in groups if "part" in group}
