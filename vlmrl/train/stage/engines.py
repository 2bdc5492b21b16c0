"""What generates in a stage (`rollout.engine`): one maker per engine, and how its answers are held against the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from vlmrl.config.schema import RolloutSection
from vlmrl.config.stages import VllmSection
from vlmrl.errors import ConfigError
from vlmrl.policy.load import COMPUTE
from vlmrl.policy.pack import Row
from vlmrl.protocols import RolloutEngine
from vlmrl.registry import Catalogue
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.rollout.mismatch import Bounds, gaps
from vlmrl.train import dist
from vlmrl.train.session import Session
from vlmrl.train.step import Learner, score_rows
from vlmrl.types import Prompt, Rollout

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
    return HFEngine(session.policy, session.vision, max_num_seqs=rollout.max_num_seqs)


@rollout_engine("vllm")
def vllm(session: Session, rollout: RolloutSection) -> RolloutEngine:
    """vLLM in this process. It is started once; a stage that wants it otherwise starts it anew."""
    from vlmrl.rollout.vllm.engine import Core, CoreOptions, VllmEngine

    if dist.world() > 1:
        raise ConfigError(f"rollout.engine: vllm runs beside one training process for now, and here are {dist.world()}; use hf")
    policy, cfg = session.policy, rollout.vllm or VllmSection()
    options = CoreOptions(
        path=session.places.model,
        revision=session.cfg.model.revision,
        architecture=type(policy.model).__name__,
        dtype=next(name for name, dtype in COMPUTE.items() if dtype == policy.compute),
        max_model_len=cfg.max_model_len or session.cfg.data.max_prompt_tokens + rollout.max_new_tokens,
        max_num_seqs=rollout.max_num_seqs,
        memory=cfg.memory,
        cache_bytes=cfg.cache_bytes,
        eager=cfg.eager or policy.device.type == "cpu",
        block_size=cfg.block_size,
    )
    core = session.rollout_engines.get("vllm")
    if core is None or core.options != options:
        if core is not None:
            core.close()
        with session.clock.phase("load"):
            core = session.rollout_engines["vllm"] = Core(options)
    return VllmEngine(core, policy, session.store, probe_every=cfg.sync_probe_every)


def bounds_of(rollout: RolloutSection) -> Bounds:
    """Bounds on the gap between sampler and trainer. The sampler's log-probs are over the nucleus, whose share is at least top_p."""
    room = -math.log(rollout.top_p)
    warn, stop = (
        known if given is None else given
        for given, known in zip((rollout.max_gap.warn, rollout.max_gap.stop), GAPS.get(rollout.engine, (None, None)), strict=True)
    )
    return Bounds(warn=None if warn is None else warn + room, stop=None if stop is None else stop + room)


def probe_gaps(learner: Learner, probes: Sequence[tuple[Prompt, Rollout]]) -> dict[str, float]:
    """Mean gap by place of answers under the policy's current weights."""
    rows = [Row(index=n, group=n, prompt=prompt, response=rollout.ids) for n, (prompt, rollout) in enumerate(probes)]
    logp_NT = score_rows(learner, rows)
    sampled_NT = torch.full_like(logp_NT, float("nan"))
    for n, (_, rollout) in enumerate(probes):
        sampled_NT[n, : len(rollout.logprobs)] = torch.tensor(rollout.logprobs)
    return {name: number / of for name, (number, of) in gaps(logp_NT, sampled_NT, [prompt for prompt, _ in probes]).items()}
