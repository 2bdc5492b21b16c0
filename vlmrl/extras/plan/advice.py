"""What to change when a stage does not fit, with the number that each change gives, and the fewest changes that make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vlmrl.extras.plan.memory import features, kept
from vlmrl.extras.plan.model import Lora
from vlmrl.extras.plan.result import Fits, Plan, plan
from vlmrl.extras.plan.settings import Settings

MOST_GPUS = 1024
SMALL_CACHE = 2**28
"""Bytes of a cache of features that is small, but keeps the media of a step."""

CHUNK = 8192
"""Patches of one pass of the tower that are many, and still little memory beside a long video."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a recipe, and the plan with it."""

    what: str
    """As an override, where there is one."""
    after: Plan

    @property
    def peak(self) -> int:
        """Bytes of the worst phase with it."""
        return self.after.memory.peak

    @property
    def fits(self) -> Fits:
        """Whether it fits with it."""
        return self.after.fits


def shares_heads(s: Settings, ranks: int) -> bool:
    """Whether the heads can be dealt to so many ranks (`scale.sequence`)."""
    return not s.shape.heads % ranks and not (s.shape.kv_heads % ranks and ranks % s.shape.kv_heads)


def candidates(s: Settings, stage: str) -> Iterator[tuple[str, Settings]]:
    """Changes that can be made, those first that change least: the same gradient, the same training at another speed, another training."""
    least = s.prompt + s.answer
    rows = max(row.tokens for row in s.rows)
    if not s.recompute:
        yield "model.gradient_checkpointing=true", s.changed(recompute=True)
    if s.vision_trains and s.vision_chunk is None and s.patches > CHUNK:
        yield f"model.vision_chunk_patches={CHUNK}", s.changed(vision_chunk=CHUNK)
    if rows > least:
        smaller = max(least, min(s.budget, rows) // 2)
        yield f"stages.{stage}.max_tokens_per_microbatch={smaller}", s.changed(budget=smaller)
        if smaller > least:
            yield f"stages.{stage}.max_tokens_per_microbatch={least}", s.changed(budget=least)
    if s.vllm_keeps:
        yield f"stages.{stage}.rollout.vllm.sleep=true", s.changed(vllm_keeps=0.0)
    if s.engine == "hf" and s.together > 1 and s.groups > 1:
        yield f"stages.{stage}.rollout.generation_batch_size=1", s.changed(together=1)
    if kept(s):
        yield f"stages.{stage}.rollout.kept_bytes=0", s.changed(kept_bytes=0)
    if features(s) > SMALL_CACHE:
        yield f"media.cache_bytes={SMALL_CACHE}", s.changed(vision_cache=SMALL_CACHE)
    if s.gpus > 1 and s.sharding != "fsdp":
        plain = f" stages.{stage}.optim.kind=adamw" if s.optimizer != "adamw" else ""
        yield f"train.sharding=fsdp{plain}", s.changed(sharding="fsdp", shard_size=None, optimizer="adamw")
    if s.gpus > s.node and s.sharding == "fsdp" and s.shard_size != s.gpus:
        yield f"train.shard_size={s.gpus}", s.changed(shard_size=s.gpus)
    for ranks in (2, 4):
        if s.sequence < ranks <= s.gpus and s.sharding in ("ddp", "fsdp") and shares_heads(s, ranks):
            yield f"train.sequence={ranks}", s.changed(sequence=ranks)
    if s.offload == "none" and s.sharding in ("zero2", "zero3"):
        yield "train.offload=optimizer", s.changed(offload="optimizer")
    if s.offload != "all" and s.sharding in ("fsdp", "zero3"):
        yield "train.offload=all", s.changed(offload="all")
    if s.sharding in ("none", "ddp") and not s.blocks:
        yield f"stages.{stage}.optim.kind=adamw8bit", s.changed(optimizer="adamw8bit")
    if s.sharding in ("none", "ddp") and not s.offload_activations:
        yield "train.offload_activations=true", s.changed(offload_activations=True)
    if s.dtype == "float32":
        yield "model.dtype=bfloat16", s.changed(dtype="bfloat16")
    if s.vision_trains and s.lora is None:
        yield f"stages.{stage}.freeze=[vision,projector]", s.changed(freeze=tuple({*s.freeze, "vision", "projector"}))
    if s.lora is None and "language" not in s.freeze:
        yield "model.lora={rank: 16}", s.changed(lora=Lora(rank=16))


def changes(before: Plan, stage: str) -> list[Change]:
    """Every change by itself that lowers the peak, the largest gain first."""
    tried = [Change(what=what, after=plan(settings)) for what, settings in candidates(before.settings, stage)]
    return sorted((one for one in tried if one.peak < before.memory.peak), key=lambda one: one.peak)


def whole_group(before: Plan, stage: str) -> Change | None:
    """The token budget that holds a whole group, where a smaller one has its prompt computed in several micro-batches; None where it fits
    no GPU of this kind or saves no time."""
    s = before.settings
    budget = s.prompt + s.answers * s.answer
    if s.turns > 1 or s.budget >= budget or before.fits != "yes":
        return None
    after = plan(s.changed(budget=budget))
    better = after.fits == "yes" and after.time.step < before.time.step
    return Change(what=f"stages.{stage}.max_tokens_per_microbatch={budget}", after=after) if better else None


def remedy(before: Plan, stage: str) -> list[Change] | None:
    """Changes that together make it fit, in the order of `candidates`, without those that turn out not to be needed; none needed: empty.
    None: not with these."""
    if before.fits == "yes":
        return []
    taken: list[Change] = []
    now = before
    while now.fits != "yes":
        better = ((what, plan(settings)) for what, settings in candidates(now.settings, stage))
        found = next(((what, after) for what, after in better if after.memory.peak < 0.98 * now.memory.peak), None)
        if found is None:
            return None
        now = found[1]
        taken.append(Change(what=found[0], after=now))
    return _needed(before, taken, stage)


def _needed(before: Plan, taken: list[Change], stage: str) -> list[Change]:
    """The last change, and of those before it the ones without which it does not fit."""
    names = [one.what for one in taken]
    for name in names[:-1]:
        rest = [other for other in names if other != name]
        tried = _apply(before, rest, stage)
        if tried and tried[-1].fits == "yes":
            names, taken = rest, tried
    return taken


def _apply(before: Plan, names: list[str], stage: str) -> list[Change] | None:
    """The named changes one after the other; None where one of them is not there to be made."""
    out: list[Change] = []
    now = before
    for name in names:
        settings = dict(candidates(now.settings, stage)).get(name)
        if settings is None:
            return None
        now = plan(settings)
        out.append(Change(what=name, after=now))
    return out


def enough_gpus(before: Plan) -> int | None:
    """The fewest GPUs, in whole nodes, on which the stage fits with its state sharded over all; None: not even `MOST_GPUS`."""
    s = before.settings
    count = s.gpus_per_node
    while count <= MOST_GPUS:
        per_rank = max(1, s.groups * s.gpus // count)
        if plan(s.changed(gpus=count, sharding="fsdp", shard_size=None, groups=per_rank)).fits == "yes":
            return count
        count *= 2
    return None
