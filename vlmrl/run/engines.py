"""What generates in a stage (`rollout.engine`): one maker per engine, and how far it may be from the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from vlmrl.config.schema import Config, RolloutSection
from vlmrl.config.stages import VllmSection
from vlmrl.errors import ConfigError
from vlmrl.protocols import RolloutEngine
from vlmrl.registry import Catalogue
from vlmrl.rollout.engine_fixed import FixedEngine
from vlmrl.rollout.mismatch import Bounds
from vlmrl.rollout.own import own_engine
from vlmrl.run.session import Session
from vlmrl.train import dist

if TYPE_CHECKING:
    from vlmrl.rollout.vllm.engine import CoreOptions

T = TypeVar("T")
Make = Callable[[Session, RolloutSection], RolloutEngine]
ENGINES: Catalogue[Make] = Catalogue("rollout engine")
GAPS = {"vllm": (0.02, 0.2)}
"""Bounds (warn, stop) of engines that do not compute with the trainer's own code, where the recipe says nothing."""


def rollout_engine(name: str) -> Callable[[Make], Make]:
    """Register how an engine is made, under the name that `rollout.engine` knows it by."""

    def register(make: Make) -> Make:
        ENGINES.add(name, make)
        return make

    return register


def open_engine(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """The engine of a stage, over the session's policy.

    Raises:
        ConfigError: it cannot run here.
    """
    return ENGINES[rollout.engine](session, rollout)


def close_engines(session: Session) -> None:
    """End what outlived its stage."""
    while session.rollout_engines:
        session.rollout_engines.popitem()[1].close()


@rollout_engine("hf")
def hf(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """The policy itself."""
    if rollout.graphs:
        return FixedEngine(session.policy, session.vision, max_num_seqs=rollout.max_num_seqs, kept_bytes=rollout.kept_bytes)
    return own_engine(session.policy, session.vision, max_num_seqs=rollout.max_num_seqs, kept_bytes=rollout.kept_bytes)


@rollout_engine("vllm")
def vllm(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """vLLM on servers, where the recipe names some; else in this process."""
    cfg = rollout.vllm or VllmSection()
    return _served(session, rollout, cfg) if cfg.servers else _colocated(session, rollout, cfg)


def _colocated(session: Session, rollout: RolloutSection, cfg: VllmSection) -> RolloutEngine:
    """It is started once; a stage that wants it otherwise starts it anew."""
    from vlmrl.rollout.vllm.engine import Core, VllmEngine

    if dist.world() > 1:
        raise ConfigError(
            f"rollout.engine: in the trainer's process vllm runs beside one training process, and here are {dist.world()}; start servers "
            "(vlmrl rollout-server) and name them in rollout.vllm.servers, or use hf"
        )
    policy = session.policy
    options = core_options(
        session.cfg, rollout, path=session.places.model, architecture=type(policy.model).__name__, cpu=policy.device.type == "cpu"
    )
    core = session.rollout_engines.get("vllm")
    if core is None or core.options != options:
        if core is not None:
            core.close()
        with session.clock.phase("load"):
            core = session.rollout_engines["vllm"] = Core(options)
    return VllmEngine(core, policy, session.store, probe_every=cfg.sync_probe_every)


def _served(session: Session, rollout: RolloutSection, cfg: VllmSection) -> RolloutEngine:
    """The ranks share the servers: each asks them for its own prompts, and rank 0 sends the weights."""
    from vlmrl.rollout.vllm.client import RemoteVllmEngine
    from vlmrl.rollout.vllm.fleet import Fleet, Needed, connect
    from vlmrl.rollout.vllm.secret import read_token

    policy = session.policy
    token = None if cfg.token_file is None else read_token(Path(cfg.token_file).expanduser(), "rollout.vllm.token_file")
    needed = Needed(architecture=type(policy.model).__name__, dtype=session.cfg.model.dtype, length=room(session.cfg, rollout))
    if (before := session.rollout_engines.pop("servers", None)) is not None:
        before.close()
    servers = connect(cfg.servers, token=token)
    fleet = Fleet(servers, needed, patience=cfg.patience, stop=lambda: session.run.stop_requested)
    session.rollout_engines["servers"] = fleet
    return RemoteVllmEngine(fleet, policy, session.store, together=_Ranks(), at_once=rollout.max_num_seqs)


class _Ranks:
    """All ranks, of which the first one sends weights to servers."""

    @property
    def lead(self) -> bool:
        return dist.is_main()

    def on_lead(self, fn: Callable[[], T]) -> T:
        return cast(T, dist.gather(dist.on_main(fn))[0])


def room(cfg: Config, rollout: RolloutSection) -> int:
    """Tokens that vLLM has room for in a prompt with its answer."""
    section = rollout.vllm or VllmSection()
    return section.max_model_len or cfg.data.max_prompt_tokens + rollout.max_new_tokens


def longest_prompt(cfg: Config, rollout: RolloutSection) -> int:
    """Tokens to which the prompts of an episode may grow: `data.max_prompt_tokens`, and no more than vLLM has room for with an answer."""
    if rollout.engine != "vllm":
        return cfg.data.max_prompt_tokens
    return min(cfg.data.max_prompt_tokens, room(cfg, rollout) - rollout.max_new_tokens)


def core_options(cfg: Config, rollout: RolloutSection, *, path: str, architecture: str, cpu: bool) -> CoreOptions:
    """How a stage's vLLM is started."""
    from vlmrl.rollout.vllm.engine import CoreOptions

    section = rollout.vllm or VllmSection()
    return CoreOptions(
        path=path,
        revision=cfg.model.revision,
        architecture=architecture,
        dtype=cfg.model.dtype,
        max_model_len=room(cfg, rollout),
        max_num_seqs=rollout.max_num_seqs,
        memory=section.memory,
        cache_bytes=section.cache_bytes,
        eager=section.eager or cpu,
        block_size=section.block_size,
    )


def bounds_of(rollout: RolloutSection) -> Bounds:
    """Bounds on the gap between sampler and trainer. The sampler's log-probs are over the nucleus, whose share is at least top_p."""
    room = -math.log(rollout.top_p)
    warn, stop = (
        known if given is None else given
        for given, known in zip((rollout.max_gap.warn, rollout.max_gap.stop), GAPS.get(rollout.engine, (None, None)), strict=True)
    )
    return Bounds(warn=None if warn is None else warn + room, stop=None if stop is None else stop + room)
