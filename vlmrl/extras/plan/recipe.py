"""What a recipe needs by the plan: its model's shape, the stage with the largest peak, and in words whether that fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl.errors import ConfigError
from vlmrl.extras.plan.advice import changes, enough_gpus, remedy
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import Shape, known_shapes, named_shape, shape_of
from vlmrl.extras.plan.result import Plan, plan
from vlmrl.extras.plan.settings import settings_of
from vlmrl.extras.plan.slack import slack_of

if TYPE_CHECKING:
    from vlmrl.config.load import ResolvedRecipe
    from vlmrl.config.schema import Config, StageBase


def heaviest(cfg: Config, stages: list[StageBase], **machine: Any) -> tuple[str, Plan]:
    """Find the stage with the largest peak, and its plan."""
    plans = [(one.name, plan(settings_of(cfg, one, **machine))) for one in stages]
    return max(plans, key=lambda pair: pair[1].memory.peak)


def shape_in(cfg: Config, name: str | None) -> Shape:
    """Find the shape of a published model, or of the recipe's.

    Raises:
        ConfigError: the model's config.json is not on this machine.
    """
    if name is not None:
        return named_shape(name)
    path = cfg.model.path
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        published = {one["source"].rpartition(" ")[2]: one["config"] for one in known_shapes().values()}
        if path in published:
            return shape_of(published[path])
        if path != "toy":
            from vlmrl.policy.load import files_of

            folder = files_of(path, cfg.model.revision) or folder
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"model.path: no config.json of '{path}' on this machine; give --shape, one of {', '.join(known_shapes())}")
    try:
        return shape_of(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def verdict(name: str, found: Plan) -> list[str]:
    """Say whether it fits, what dominates, and what to change."""
    m, gpu = found.memory, found.settings.gpu
    word = {"yes": "fits", "tight": "is tight", "no": "does not fit"}[found.fits]
    out = [
        f"{gigabytes(m.peak)} of {gigabytes(gpu.memory)} GB: {word}. Most memory: {found.largest_part}; most time: {found.time.dominates}; "
        f"{found.tokens_per_second:,.0f} tokens/s per GPU"
    ]
    if m.host:
        out.append(f"{gigabytes(m.host)} GB of the machine's memory for each rank")
    if found.settings.teacher:
        out.append("its teacher is counted with the policy's size and prompts; vlmrl check says how much longer its own prompts are")
    if found.fits == "yes":
        return out
    out.append("each change by itself:")
    for change in changes(found, name):
        out.append(
            f"  {change.what}: {gigabytes(change.peak)} GB, {change.after.time.step:.1f} s a step{'; fits' if change.fits == 'yes' else ''}"
        )
    steps = remedy(found, name)
    if steps:
        last = steps[-1].after
        out.append(f"together: {' '.join(step.what for step in steps)}: {gigabytes(last.memory.peak)} GB, {last.time.step:.1f} s a step")
    count = enough_gpus(found)
    if count is not None and count > found.settings.gpus:
        out.append(f"as it is, with train.sharding=fsdp: {count} GPUs")
    return out


def warning(loaded: ResolvedRecipe, gpu: str) -> str | None:
    """Say in a line if a stage does not fit a GPU (`vlmrl check --gpu`), or why nobody knows; None where all of them fit.

    Raises:
        ConfigError: there is no such GPU.
    """
    kind, _, number = gpu.partition(":")
    if number and not (number.isdecimal() and int(number)):
        raise ConfigError(f"--gpu: expected TYPE or TYPE:NUMBER, as h100:8, got '{gpu}'")
    card = gpu_of(kind)
    try:
        shape = shape_in(loaded.config, None)
    except ConfigError as error:
        return f"plan: skipped, {error}"
    given = {"slack": slack_of(card).bytes}
    name, found = heaviest(loaded.config, list(loaded.config.stages), shape=shape, gpu=card, gpus=int(number or 1), given=given)
    if found.fits == "yes":
        return None
    return f"warning: stage '{name}' (computed, not measured): {verdict(name, found)[0]}; vlmrl plan says what to change"


def gigabytes(size: float) -> str:
    """Write a size in decimal gigabytes."""
    return f"{size / 1e9:.1f}"
