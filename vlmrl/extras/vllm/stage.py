"""vLLM as the engine of a stage (`rollout.engine: vllm`): in the trainer's process, or on servers that a run's ranks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from vlmrl.config.schema import Config, RolloutSection
from vlmrl.config.stages import VllmSection
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.argued import lacks
from vlmrl.extras.vllm.client import RemoteVllmEngine
from vlmrl.extras.vllm.engine import Core, CoreOptions, VllmEngine, asked_once, keeps_states
from vlmrl.extras.vllm.fleet import Fleet, Needed, connect
from vlmrl.extras.vllm.routes import require_routers
from vlmrl.extras.vllm.secret import read_token
from vlmrl.policy.model import ProcessorBundle
from vlmrl.protocols import RolloutEngine
from vlmrl.run.engines import EngineKind
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.types import Rollout

T = TypeVar("T")


def vllm(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """vLLM on servers, where the recipe names some; else in this process."""
    cfg = rollout.vllm or VllmSection()
    return _served(session, rollout, cfg) if cfg.servers else _colocated(session, rollout, cfg)


def _colocated(session: Session, rollout: RolloutSection, cfg: VllmSection) -> RolloutEngine:
    """It is started once; a stage that wants it otherwise starts it anew."""
    if dist.world() > 1:
        raise ConfigError(
            f"rollout.engine: in the trainer's process vllm runs beside one training process, and here are {dist.world()}; start servers "
            "(vlmrl serve --rollouts) and name them in rollout.vllm.servers, or use hf"
        )
    if cfg.tensor_parallel > 1:
        raise ConfigError(
            f"rollout.vllm.tensor_parallel ({cfg.tensor_parallel}): vLLM in the trainer's process has one device; start servers "
            "(vlmrl serve --rollouts) and name them in rollout.vllm.servers"
        )
    policy = session.policy
    bundle, path = policy.bundle, session.places.model
    options = core_options(session.cfg, rollout, path=path, model=policy.model, bundle=bundle, cpu=policy.device.type == "cpu")
    options = replace(options, routes=rollout.router_replay, sleeps=cfg.sleep)
    core = session.rollout_engines.get("vllm")
    if core is None or core.options != options:
        if core is not None:
            core.close()
        with session.clock.phase("load"):
            core = session.rollout_engines["vllm"] = Core(options)
    return VllmEngine(core, policy, session.store, probe_every=cfg.sync_probe_every, clips=lacks(bundle, path, "P18"))


def _served(session: Session, rollout: RolloutSection, cfg: VllmSection) -> RolloutEngine:
    """The ranks share the servers: each asks them for its own prompts, and rank 0 sends the weights."""
    policy = session.policy
    token = None if cfg.token_file is None else read_token(Path(cfg.token_file).expanduser(), "rollout.vllm.token_file")
    bundle = policy.bundle
    routers = getattr(policy.subject, "routers", 0) if rollout.router_replay else None
    if routers is not None:
        require_routers(policy.subject, routers)
    needed = Needed(
        architecture=type(policy.model).__name__,
        dtype=session.cfg.model.dtype,
        length=room(session.cfg, rollout),
        processor=None if bundle.writer is None else bundle.fingerprint,
        routers=routers,
    )
    if (before := session.rollout_engines.pop("servers", None)) is not None:
        before.close()
    servers = connect(cfg.servers, token=token, kind=None if cfg.transfer == "auto" else cfg.transfer)
    fleet = Fleet(servers, needed, patience=cfg.patience, stop=lambda: session.run.stop_requested)
    session.rollout_engines["servers"] = fleet
    clips = lacks(bundle, session.places.model, "P18", here=False)
    return RemoteVllmEngine(fleet, policy, session.store, together=_Ranks(), at_once=rollout.max_num_seqs, clips=clips)


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


def core_options(cfg: Config, rollout: RolloutSection, *, path: str, model: Any, bundle: ProcessorBundle, cpu: bool) -> CoreOptions:
    """How a stage's vLLM is started. `model`: of transformers, with or without weights."""
    section = rollout.vllm or VllmSection()
    return CoreOptions(
        path=path,
        revision=cfg.model.revision,
        architecture=type(model).__name__,
        dtype=cfg.model.dtype,
        max_model_len=room(cfg, rollout),
        max_num_seqs=rollout.max_num_seqs,
        memory=section.memory,
        cache_bytes=section.cache_bytes,
        eager=section.eager or cpu,
        block_size=section.block_size,
        tensor_parallel=section.tensor_parallel,
        in_parts=not cpu,
        shares=not cpu or not keeps_states(model.config),
        raw_pixels=bundle.writer is None,
    )


def _within(rollout: RolloutSection) -> bool:
    """Whether it runs in the trainer's process, where its allocator refuses segments of memory that can grow."""
    return not (rollout.vllm and rollout.vllm.servers)


@dataclass(frozen=True, kw_only=True)
class VllmKind(EngineKind):
    """Beside what a stage asks for, what `vlmrl check MODEL --engine vllm` does."""

    asked_once: Callable[..., list[Rollout | ConfigError]] = asked_once


VLLM = VllmKind(make=vllm, gaps=(0.02, 0.2), room=room, allocates=_within)
