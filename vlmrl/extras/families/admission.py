"""What a family without code of its own may be trained with: options that are not proven there are refused, layouts as the kit admits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from vlmrl.config.schema import Config, RolloutStage
from vlmrl.evals.score.records import REFERENCE
from vlmrl.families.report import report_of
from vlmrl.policy.forward import TURNS
from vlmrl.policy.model import Policy

REPEAT = "repeat"
SHARED = "shared_prefix"
FORK = "fork"
PLAIN = {"kernels": "torch"}
"""What a default `auto` has become before a run is opened (`run.machine`)."""


VLLM = "P14"
SHARDS = "P16"
TURNS_OF = "P17"
"""Promises of `vlmrl check`: vLLM's answers, weights in shards, conversations."""
REPLAYED = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe")
"""Model types whose experts vLLM was seen to hand out as the policy takes them (`tests/agreement/test_vllm_routing.py`)."""


def unproven(
    cfg: Config,
    *,
    name: str,
    choice: str,
    lacking: Callable[..., str],
    unrouted: Callable[[], str] = lambda: "it has no routers",
    taken: Collection[str] = (),
) -> list[str]:
    """What the recipe asks for and this family is not proven with, each with what to do.

    Args:
        lacking: promise -> why it is not kept; nothing where it is. With `here=False` whatever versions are installed here.
        unrouted: why its choices of experts cannot be replayed; nothing where they can.
        taken: options that it was tried with.
    """
    who = f"a '{name}' model under model.family '{choice}'"
    asked = [one for one in (*_asked(cfg, lacking), *_replays(cfg, name, unrouted)) if not one[0].endswith(tuple(taken))]
    return [f"{option}: {value!r} is not proven with {who}; {remedy}" for option, value, remedy in asked]


def reported(path: str, promise: str, *, here: bool = True) -> str:
    """What the report beside a model lacks for what needs a promise; nothing where the promise is kept. `here`: of `Report.lacks`."""
    report = report_of(path)
    if report is None:
        how = " with --engine vllm" if promise == VLLM else ""
        return f"no report lies beside it: `vlmrl check` of a folder with the model{how} tries promise {promise}"
    return report.lacks(promise, here=here)


def _asked(cfg: Config, lacking: Callable[..., str]) -> Iterator[tuple[str, object, str]]:
    """(option, its value, what to do) of what needs code of a family's own, or a promise that is not kept."""
    m, whole = cfg.model, type(cfg.model).model_fields
    for name in ("attention", "prefix_backend", "kernels"):
        value, plain = getattr(m, name), whole[name].default
        if value not in (plain, PLAIN.get(name)):
            yield f"model.{name}", value, f"leave it at {plain!r}"
    if m.positions == "grid":
        yield "model.positions", m.positions, "leave it at 'auto': positions are the model's own"
    if m.vision_chunk_patches is not None:
        yield "model.vision_chunk_patches", m.vision_chunk_patches, "take it out: media pass through the tower one by one"
    if cfg.media.vision_cache_dir is not None:
        yield "media.vision_cache_dir", cfg.media.vision_cache_dir, "take it out: features are kept in memory (media.cache_bytes)"
    if cfg.train.sharding not in ("ddp", "fsdp"):
        yield "train.sharding", cfg.train.sharding, "take ddp" if lacking(SHARDS) else "take ddp, or fsdp"
    elif cfg.train.sharding == "fsdp" and (lacks := lacking(SHARDS)):
        yield "train.sharding", "fsdp", f"take ddp; {lacks}"
    if cfg.train.offload != "none":
        yield "train.offload", cfg.train.offload, "leave it at 'none'"
    if cfg.train.offload_activations:
        yield "train.offload_activations", True, "leave it out"
    if cfg.train.sequence != 1:
        yield "train.sequence", cfg.train.sequence, "take 1"
    for place, stage in enumerate(cfg.stages):
        if isinstance(stage, RolloutStage) and stage.rollout.engine != REFERENCE:
            served = stage.rollout.vllm is not None and bool(stage.rollout.vllm.servers)  # which look at their own versions
            if lacks := lacking(VLLM, here=not served):
                yield f"stages[{place}].rollout.engine", stage.rollout.engine, f"take {REFERENCE}: the policy itself answers; {lacks}"
        if isinstance(stage, RolloutStage) and stage.rollout.graphs is True:
            yield f"stages[{place}].rollout.graphs", True, "leave it out: the shapes of its own caches grow"
        if isinstance(stage, RolloutStage) and stage.environment is not None and (lacks := lacking(TURNS_OF)):
            yield f"stages[{place}].environment", stage.environment.name, f"take a Qwen-VL model; {lacks}"


def _replays(cfg: Config, name: str, unrouted: Callable[[], str]) -> Iterator[tuple[str, object, str]]:
    """As `_asked`, of stages that ask for the experts of sampling."""
    for place, stage in enumerate(cfg.stages):
        if isinstance(stage, RolloutStage) and stage.rollout.router_replay:
            if stage.rollout.engine != REFERENCE and name not in REPLAYED:
                told = f"take rollout.engine: {REFERENCE}, whose choices are kept; vLLM's are of {', '.join(REPLAYED)}"
                yield f"stages[{place}].rollout.router_replay", True, told
            elif why := unrouted():
                yield f"stages[{place}].rollout.router_replay", True, f"take it out: {why}"


def training_layout(policy: Policy, asked: str, *, recomputes: bool) -> tuple[str, str]:
    """(the layout that trains, why it is not the one asked for or nothing). All give the same log-probs; what differs is cost.

    A forked cache is a pass for each prompt, and ranks whose weights lie in shards would make unlike numbers of them.

    Args:
        recomputes: whether layers are computed again in the backward pass, under which a cache is dropped.
    """
    admitted = [one for one in policy.bundle.layouts if one != FORK or not policy.shards.collective]
    if asked == REPEAT or asked in admitted:
        return asked, ""
    if asked in TURNS and SHARED in admitted:
        return SHARED, f"forward: {SHARED} in place of {asked}, which needs the code of a family of its own"
    taken = FORK if asked in (SHARED, *TURNS) and FORK in admitted and not recomputes else REPEAT
    known = f"vlmrl check admits {', '.join(admitted)}" if admitted else "no report of vlmrl check lies beside the model"
    return taken, f"forward: {taken} in place of {asked} ({known}; run `vlmrl check` on the model's folder to admit more)"
