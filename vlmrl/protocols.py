"""Protocols that parts of the package agree on (engine, sampler, strategy, reward), and the registries of what a recipe names.

Pure tensor methods (advantage, credit, policy_loss, select) have their registries in `vlmrl.algo`, next to their input types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from vlmrl.registry import Registry
from vlmrl.types import GenerationSettings, Group, HintRequest, HintRound, PlannedPrompt, Prompt, Request, Rollout, ScoredGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardContext:
    """What a reward may read besides the group."""

    progress: float = 0.0
    """Share of the run that is done, in [0, 1]: for schedules."""
    media: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Processed media by handle key, so that no reward opens a file again."""


Reward = Callable[..., Sequence[float | None]]
"""`(Group, RewardContext, *, arguments) -> one number per rollout`. `None` means "cannot judge". No state, no global randomness."""

reward: Registry[Reward] = Registry("reward")
"""Extras, beside those of `config.combinations`: `compares`, a rollout's number depends on the others of its group; `no_truth`, it knows
no gold answer; `worker` and `imports`, it runs in a process of its own; `service`, it asks one."""


class Stateful(Protocol):
    """Something that must survive a crash. Values are JSON values and tensors; loading is strict: unknown or missing keys raise."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class PromptSampler(Stateful, Protocol):
    """Decides which rows come next. Reads the ledger, never writes it."""

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]: ...


class RolloutEngine(Protocol):
    """Makes answers. `version` is the policy version it generates with; it is stamped on every rollout."""

    @property
    def version(self) -> int: ...

    def generate(
        self, requests: Sequence[Request], settings: GenerationSettings, done: Callable[[int, list[Rollout]], None] | None = None
    ) -> list[list[Rollout]]:
        """Make the rollouts of every request.

        Args:
            settings: of sampling, the same for all.
            done: called as `done(number, rollouts)` as soon as a request's last answer has ended, so that it is scored meanwhile.

        Returns:
            For each request, in order, one rollout per seed, in the order of its seeds.
        """
        ...

    def ready(self) -> AbstractContextManager[None]:
        """Give the context in which `generate` may be called while the policy trains: the engine generates with its current weights. Every
        rank enters and leaves it.
        """
        ...

    def probes(self, temperature: float) -> list[tuple[Prompt, Rollout]]:
        """Give answers to hold against the trainer's log-probs, where it is time to look at them; nothing where the weights are the
        trainer's own. Called within `ready`.
        """
        ...

    @property
    def counts(self) -> Mapping[str, Callable[[], float]]:
        """Running counts of its work, by the names that they are logged under."""
        ...

    def close(self) -> None: ...


class MultiTurnSession(Protocol):
    """Conversations with one engine, turn by turn, while its weights stay as they are."""

    def generate(self, requests: Sequence[Request], settings: GenerationSettings) -> Sequence[Sequence[Rollout]]:
        """Make the next turns, as `RolloutEngine.generate` does. What their conversations have read before need not be read again.

        Returns:
            For each request, in order, one rollout per seed.
        """
        ...

    def forget(self, conversations: Iterable[int]) -> None:
        """Free what is kept of conversations that are over."""
        ...


@runtime_checkable
class DetachedEngine(RolloutEngine, Protocol):
    """An engine with weights of its own: they are the policy's only after `sync`."""

    @property
    def beside_training(self) -> bool:
        """Whether `generate` may run in a thread while the policy is trained: it needs nothing of the policy, nor its memory."""
        ...

    def sync(self) -> None:
        """Take the policy's weights; `version` is then the policy's. Called on the main thread of every rank, while nothing generates."""
        ...


class Strategy(Protocol):
    """Completes the rollouts of one prompt after on-policy sampling (for example by adding a ground-truth row)."""

    def sampled(self, rollouts: int) -> int:
        """Say how many of a group's `rollouts` rows are sampled from the policy."""
        ...

    def complete(self, group: Group, score: Callable[[Group], Sequence[float | None]], tokenize: Callable[[str], Sequence[int]]) -> Group:
        """Add the strategy's own rows to the group.

        Args:
            group: with the rows that were sampled.
            score: gives the total reward of each row of a group; None where nothing judged it.
            tokenize: text of a row -> its ids, end token included.

        Returns:
            The group with all of its rows, or the same object where there is nothing to add.
        """
        ...


@runtime_checkable
class GuidingStrategy(Strategy, Protocol):
    """A strategy that may sample again under prompts with hints, once it knows the rewards of what was sampled before.

    Both methods are pure: a resumed run calls them again and must get the same. The group's own rows come first, then as many rounds
    as `more` asks for; `merge` then forms the group, and `complete` is called on that.
    """

    def more(self, group: Group, rewards: Sequence[float | None], rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        """Say what to sample next.

        Args:
            group: with its own rows, those that were sampled without a hint.
            rewards: total of each of them; None where nothing judged it.
            rounds: what came of the requests so far, in order.
            step: of the stage.

        Returns:
            Requests of the next round; none ends the rounds.

        Raises:
            RowError: the row's hints cannot be used; the group goes on without guidance, and the reason is counted.
        """
        ...

    def merge(self, group: Group, rewards: Sequence[float | None], rounds: Sequence[HintRound]) -> Group:
        """Form the group that is trained on, of its own rows and those of the rounds. Rows keep their place as `k`."""
        ...


@runtime_checkable
class RememberingStrategy(Strategy, Stateful, Protocol):
    """A strategy with a memory of past steps. `complete` only reads it: groups come in any order, and replayed ones not at all."""

    def observe(self, groups: Sequence[ScoredGroup], priorities: Sequence[float], *, version: int) -> None:
        """Learn from a step's groups of all ranks, in plan order. `priorities`: mean |advantage| of each group's sampled rows, 0 for
        none; `version`: that of the policy after the step."""
        ...


def why_not_ahead(strategy: Strategy) -> str | None:
    """Say why the answers of a strategy cannot be sampled some updates before they are trained (`rollout.staleness`); None: they can."""
    name = type(strategy).__name__
    if isinstance(strategy, GuidingStrategy):
        return (
            f"rollout.staleness: strategy {name} samples again once it knows the rewards, and by then the weights have moved on; set "
            "rollout.staleness to 0, or take another strategy"
        )
    if isinstance(strategy, RememberingStrategy):
        return (
            f"rollout.staleness: strategy {name} completes groups from its memory of all steps before, and some of these are not trained "
            "when a step is sampled ahead; set rollout.staleness to 0, or take another strategy"
        )
    return None


environment: Registry[Callable[..., Any]] = Registry("environment")
"""(keyword arguments) -> a world with `reset`, `step`, `close` and `identity` (`agents.protocol.Environment`). Extras: `deterministic`
(True unless said), `tasks`, those that `vlmrl tools env` runs where none are given (or a function of the arguments for them), `rows`,
that its tasks are whole rows of data (`agents.rows`), `reads_answers`, that it gets them whole, `begins_alike`, that seeds may, `asks`, the
answer type in whose words prompts ask for an action, `refuses`, a rule about its stage (`algo.rules`), `missing`, a function that says what
is to be installed, or None, `lacking`, the same of a part."""
sampler: Registry[Callable[..., PromptSampler]] = Registry("sampler")
strategy: Registry[Callable[..., Strategy]] = Registry("strategy")
budget: Registry[Callable[..., list[int]]] = Registry("budget")
"""(ledger rows of the planned prompts, total rollouts) -> rollouts per prompt, summing to the total"""
