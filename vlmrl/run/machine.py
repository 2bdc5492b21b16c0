"""What a recipe leaves to the machine: settles `auto` of compute type, kernels, recomputation and recorded steps before a run is opened.

They decide numbers, so they are fixed options of a run: what was chosen stands in `run.json` and `config.yaml`, and a run that is there
goes on with what it was begun with, wherever that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmrl.config.load import ResolvedRecipe
from vlmrl.config.load import loaded as loaded_of
from vlmrl.config.schema import Config, ModelSection, RolloutStage, StageBase
from vlmrl.evals.ask.models import compute_dtype
from vlmrl.policy.liger import own_forward, suits
from vlmrl.policy.load import pick_device

AUTO = "auto"
KEYS = ("dtype", "kernels", "gradient_checkpointing")
"""Keys of `model` that a recipe may leave to the machine."""


def settled(loaded: ResolvedRecipe, path: str, began: Mapping[str, Any] | None = None) -> ResolvedRecipe:
    """The recipe with the values that it leaves to the machine.

    Args:
        path: the model, after `toy` has been replaced by what it generated.
        began: fixed options of the run, if it was begun before (`run.rundir`).

    Raises:
        ConfigError: the model is not found, or a device is not there.
    """
    cfg = loaded.config
    chosen = {key: value for key, value in choices(cfg.model, path, began).items() if getattr(cfg.model, key) == AUTO}
    stages = tuple(_stage(cfg, path, n, began) for n in range(len(cfg.stages)))
    if not chosen and stages == cfg.stages:
        return loaded
    made = loaded_of(cfg.model_copy(update={"model": cfg.model.model_copy(update=chosen), "stages": stages}))
    return replace(loaded, config=made.config, text=made.text, hash=made.hash)


def _stage(cfg: Config, path: str, index: int, began: Mapping[str, Any] | None) -> StageBase:
    """A stage whose `rollout.graphs` is settled."""
    stage = cfg.stages[index]
    if not isinstance(stage, RolloutStage) or stage.rollout.graphs != AUTO:
        return stage
    before = list((began or {}).get("stages", ()))
    graphs = before[index].get("rollout", {}).get("graphs", AUTO) if index < len(before) else AUTO
    if graphs == AUTO:
        graphs = records(cfg, path) and stage.rollout.engine == "hf"
    return stage.model_copy(update={"rollout": stage.rollout.model_copy(update={"graphs": graphs})})


def records(cfg: Config, path: str) -> bool:
    """Whether steps of the engine `hf` can be recorded: on CUDA, over whole weights that lie in one place, by the trainer's own forward.

    On an H200 a step of a 3B model with 64 answers took 15 ms recorded and 58 ms otherwise (docs/benchmarks/gpu.md): launching some 2,300
    kernels takes longer than they do.
    """
    m = cfg.model
    if pick_device(m.device).type != "cuda" or m.quantize != "none" or cfg.train.sharding != "ddp":
        return False
    return own_forward(path, family=m.family, revision=m.revision)


def choices(model: ModelSection, path: str, began: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `auto` is for each of `KEYS`: as the run was begun, else bfloat16, liger's kernels and recomputation on CUDA.

    Without recomputation not even a 3B model trains in 80 GB with the default token budget of a micro-batch (`vlmrl plan`).
    """
    before = (began or {}).get("model", {})
    known = {key: before[key] for key in KEYS if before.get(key, AUTO) != AUTO}
    if len(known) == len(KEYS):
        return known
    cuda = pick_device(model.device).type == "cuda"
    liger = cuda and model.kernels == AUTO and suits(path, family=model.family, revision=model.revision)
    here = {
        "dtype": compute_dtype(model.device, AUTO),
        "kernels": "liger" if liger else "torch",
        "gradient_checkpointing": cuda,
    }
    return here | known


def told(asked: Config, taken: Config, *, resumed: bool) -> list[str]:
    """The line about what was chosen; none where the recipe says everything."""
    pairs = [(f"model.{key}", getattr(asked.model, key), getattr(taken.model, key)) for key in KEYS]
    for of_asked, of_taken in zip(asked.stages, taken.stages, strict=True):
        if isinstance(of_asked, RolloutStage) and isinstance(of_taken, RolloutStage):
            pairs.append((f"stages.{of_asked.name}.rollout.graphs", of_asked.rollout.graphs, of_taken.rollout.graphs))
    chosen = [f"{key}: {str(after).lower()}" for key, before, after in pairs if before == AUTO]
    why = "as the run was begun" if resumed else f"chosen for {pick_device(taken.model.device).type}"
    return [f"auto: {', '.join(chosen)} ({why})"] if chosen else []
