"""A stage as its step sees it: the policy that learns, the rows, the rewards, and what is counted.

How it is opened and restored is the run's business (`run.open_stage`), and so is everything that happens after an update (`run.hooks`).
A kind of stage is a function that makes one step with a `Stage` and gives a `StepResult`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import torch

from vlmrl.train.meter import Clock, TokenCounter
from vlmrl.train.statistics import label_key
from vlmrl.train.step import Learner, StepReport, learning_rate, score_rows, set_rates

if TYPE_CHECKING:
    from vlmrl.algo.inputs import LossInputs
    from vlmrl.config.schema import StageBase
    from vlmrl.media.store import MediaStore
    from vlmrl.policy.model import Policy
    from vlmrl.policy.pack import Row
    from vlmrl.policy.vision import VisionCache
    from vlmrl.train.batch import StepBatch
    from vlmrl.train.loader import PromptLoader
    from vlmrl.train.stage.provide import Providers
    from vlmrl.train.stage.rewards import Rewards
    from vlmrl.train.state import RunState


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The stage's starting weights, frozen, with features of their own where the tower trains."""

    policy: Policy
    """A second model, or with adapters the view of the trained one without them (`Policy.without_adapters`)."""
    vision: VisionCache


class Recorder(Protocol):
    """Records groups of each step, for whoever looks at the run."""

    def choose(self, batch: StepBatch, adv_NT: torch.Tensor, adv_N: torch.Tensor, *, step: int, global_step: int) -> None:
        """Take what is kept of a step's groups on this rank, before the update.

        Args:
            adv_NT: advantages per token of this rank's rows; adv_N: those of all rollouts of all ranks.
            step: of the stage, from 1; global_step: of the run.
        """
        ...

    def see(self, rows: Sequence[Row], x: LossInputs) -> None:
        """Take what the update's forward gave for a micro-batch."""
        ...

    def write(self) -> None:
        """Hand on what was taken of the step; training does not wait."""
        ...

    def settle(self) -> None:
        """Wait until everything handed on is written and durable."""
        ...

    def close(self) -> None:
        """Settle, and end."""
        ...


@dataclass(kw_only=True)
class StepResult:
    """Result of a step for the hooks behind it, and what these give to one another."""

    report: StepReport
    values: dict[str, float]
    """What the step measured, by the names under which it is logged."""
    line: dict[str, float] = field(default_factory=dict[str, float])
    """Everything that is logged of the step and equal in a resumed run."""
    warnings: list[str] = field(default_factory=list[str])
    """Said once the step is logged."""
    stop: bool = False
    """Whether a signal asked any rank to stop."""


@dataclass(kw_only=True)
class Stage:
    """A stage as its step function gets it. Everything of it that must survive is in `state`, or is kept by `train.memory`."""

    cfg: StageBase
    seed: int
    """Of the run; the step and the stage's name are the other coordinates of a random number."""
    state: RunState
    learner: Learner
    """The policy, its optimizer, and how they compute."""
    loader: PromptLoader
    store: MediaStore
    reference: Reference | None
    """Kept where a method or the loss compares with the starting weights."""
    providers: Providers
    """Who fetches what the recipe's methods need."""
    rewards: Rewards | None
    """None: the stage trains on written answers."""
    clock: Clock = field(default_factory=Clock)
    """Runs from one log line to the next, so that no second of the loop is outside it."""
    tokens: TokenCounter = field(default_factory=TokenCounter)

    @property
    def policy(self) -> Policy:
        """The weights that train."""
        return self.learner.policy

    @property
    def ended(self) -> bool:
        """Whether the stage is over."""
        return ended(self.cfg, self.state.step, self.state.held_out_score)

    @cached_property
    def label_key(self) -> str | None:
        """What the think rate is told apart by."""
        return label_key(self.loader.samples.values())

    def set_rate(self) -> None:
        """Set the learning rates of the coming update, from the number of finished steps alone: a resumed run has the same."""
        o = self.cfg.optim
        shape = partial(learning_rate, self.state.step, self.cfg.steps, schedule=o.schedule, warmup=o.warmup)
        set_rates(self.learner.updates.optimizer, o, lambda peak: shape(peak=peak))

    def count(self, rows: Sequence[Row]) -> None:
        """Count the tokens of a minibatch that this rank has trained on."""
        self.tokens.add(rows, self.learner.max_tokens_per_microbatch, layout=self.learner.layout)

    def weights_changed(self) -> None:
        """Tell the providers' states that an update was applied."""
        for keeper in self.providers.keepers.values():
            keeper.after_update()

    def score_reference(self, rows: Sequence[Row]) -> torch.Tensor:
        """Compute log-probs of rows under the stage's starting weights.

        Returns:
            [N, T] float32, in nats, on the CPU; 0 outside the responses.
        """
        assert self.reference is not None
        return score_rows(self.learner, rows, policy=self.reference.policy, vision=self.reference.vision)

    @contextmanager
    def timed_loader(self, step: int | None = None) -> Iterator[None]:
        """Time a block as `decode` (what this thread waited for media) and `encode` (the rest); then the media of the step behind
        `step` (the current one, if not given) are fetched in the background."""
        began, waited = time.perf_counter(), self.store.waited()
        yield
        decode = self.store.waited() - waited  # of this thread: what background threads have fetched cost it nothing
        self.clock.add("decode", decode)
        self.clock.add("encode", time.perf_counter() - began - decode)
        # behind the block, so that the next step's media do not compete with this one's
        if self.loader.prefetcher is not None and (self.state.step if step is None else step) + 1 < self.cfg.steps:
            with self.clock.phase("prefetch"):
                self.loader.prefetch(self.state.ledger)


def ended(cfg: StageBase, step: int, held_out_score: float | None) -> bool:
    """Tell whether a stage has made its steps, or its held-out rows are answered well enough (`until`)."""
    reached = cfg.until is not None and held_out_score is not None and held_out_score >= cfg.until.score
    return step >= cfg.steps or reached
