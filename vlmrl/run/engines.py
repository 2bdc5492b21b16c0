"""What generates in a stage (`rollout.engine`): how each engine is made, and how far it may be from the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from vlmrl.config.schema import Config, RolloutSection, RolloutStage
from vlmrl.protocols import RolloutEngine
from vlmrl.registry import Catalogue
from vlmrl.rollout.engine_fixed import FixedEngine
from vlmrl.rollout.mismatch import Bounds
from vlmrl.rollout.own import own_engine
from vlmrl.run.session import Session

Make = Callable[[Session, RolloutSection], RolloutEngine]


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """An engine as recipes name it."""

    make: Make
    gaps: tuple[float | None, float | None] = (None, None)
    """Bounds (warn, stop) where the recipe says nothing; none for one that computes with the trainer's own code."""
    room: Callable[[Config, RolloutSection], int] | None = None
    """Tokens that it has room for in a prompt with its answer; None: nothing bounds them."""
    allocates: Callable[[RolloutSection], bool] = lambda rollout: False
    """Whether it brings an allocator of its own into the trainer's process."""


def hf(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """The policy itself."""
    if rollout.graphs is True:
        return FixedEngine(session.policy, session.vision, max_num_seqs=rollout.max_num_seqs, kept_bytes=rollout.kept_bytes)
    return own_engine(session.policy, session.vision, max_num_seqs=rollout.max_num_seqs, kept_bytes=rollout.kept_bytes)


ENGINES: Catalogue[EngineKind] = Catalogue("rollout engine", {"hf": EngineKind(make=hf)})


def rollout_engine(name: str) -> Callable[[Make], Make]:
    """Register how an engine is made, under the name that `rollout.engine` knows it by."""

    def register(make: Make) -> Make:
        ENGINES.add(name, EngineKind(make=make))
        return make

    return register


def open_engine(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """The engine of a stage, over the session's policy.

    Raises:
        ConfigError: it cannot run here.
    """
    return ENGINES[rollout.engine].make(session, rollout)


def close_engines(session: Session) -> None:
    """End what outlived its stage."""
    while session.rollout_engines:
        session.rollout_engines.popitem()[1].close()


def longest_prompt(cfg: Config, rollout: RolloutSection) -> int:
    """Tokens to which the prompts of an episode may grow: `data.max_prompt_tokens`, and no more than the engine has room for with an
    answer."""
    room = ENGINES[rollout.engine].room
    most = cfg.data.max_prompt_tokens
    return most if room is None else min(most, room(cfg, rollout) - rollout.max_new_tokens)


def own_allocator(cfg: Config) -> bool:
    """Whether the engine of a stage brings an allocator of its own into the trainer's process."""
    rollouts = [stage.rollout for stage in cfg.stages if isinstance(stage, RolloutStage)]
    return any(ENGINES[rollout.engine].allocates(rollout) for rollout in rollouts)


def bounds_of(rollout: RolloutSection) -> Bounds:
    """Bounds on the gap between sampler and trainer. The sampler's log-probs are over the nucleus, whose share is at least top_p."""
    room = -math.log(rollout.top_p)
    warn, stop = (
        known if given is None else given
        for given, known in zip((rollout.max_gap.warn, rollout.max_gap.stop), ENGINES[rollout.engine].gaps, strict=True)
    )
    return Bounds(warn=None if warn is None else warn + room, stop=None if stop is None else stop + room)
