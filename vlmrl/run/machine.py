"""What a recipe leaves to the machine: settles `auto` of compute type, kernels and recomputation before a run is opened.

They decide numbers, so they are fixed options of a run: what was chosen stands in `run.json` and `config.yaml`, and a run that is there
goes on with what it was begun with, wherever that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmrl.config.load import ResolvedRecipe
from vlmrl.config.load import loaded as loaded_of
from vlmrl.config.schema import ModelSection
from vlmrl.evals.ask.models import compute_dtype
from vlmrl.policy.liger import suits
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
    model = loaded.config.model
    chosen = {key: value for key, value in choices(model, path, began).items() if getattr(model, key) == AUTO}
    if not chosen:
        return loaded
    made = loaded_of(loaded.config.model_copy(update={"model": model.model_copy(update=chosen)}))
    return replace(loaded, config=made.config, text=made.text, hash=made.hash)


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


def told(asked: ModelSection, taken: ModelSection, *, resumed: bool) -> list[str]:
    """The line about what was chosen; none where the recipe says everything."""
    chosen = [f"model.{key}: {str(getattr(taken, key)).lower()}" for key in KEYS if getattr(asked, key) == AUTO]
    why = "as the run was begun" if resumed else f"chosen for {pick_device(taken.device).type}"
    return [f"auto: {', '.join(chosen)} ({why})"] if chosen else []
