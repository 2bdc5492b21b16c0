"""The model of the check `size`: the shape of Qwen2.5-VL 3B with as many layers as fit, or a tiny one on a CPU, with random weights."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.base import Settings
from benchmarks.step import workload

SHARE = 0.7
"""Of the device's free memory that the state of the model may take; the rest is for activations."""
SIZE = "3b"


def layers_that_fit(free: int, *, layers: int, per_layer: int, rest: int) -> int:
    """How many decoder layers leave room: 16 bytes per weight, of which `rest` are outside the layers."""
    return max(2, min(layers, int((SHARE * free / 16 - rest) // per_layer)))


def build(settings: Settings) -> tuple[Path, str]:
    """(folder with the model, what it is)."""
    size, label = "tiny", "a tiny model: a device holds the shape of 3B, a CPU would take hours"
    if settings.cuda:
        size, label = _cut(torch.cuda.mem_get_info()[0])
    job = {"size": size, "device": settings.device, "work": str(settings.work)}
    workload.build_model(job, 0)
    if settings.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return workload.model_folder(job, 0), label


def _cut(free: int) -> tuple[str, str]:
    """The 3B shape with fewer layers where it does not fit, registered under a name of its own."""
    shape = workload.SIZES[SIZE]
    text = shape["text"]
    hidden, key = text["hidden_size"], text["hidden_size"] // text["num_attention_heads"] * text["num_key_value_heads"]
    per_layer = hidden * (2 * hidden + 2 * key + 3 * text["intermediate_size"])
    tower = shape["vision"]
    of_tower = tower["depth"] * tower["hidden_size"] * (4 * tower["hidden_size"] + 3 * tower["intermediate_size"])
    rest = shape["vocabulary"] * hidden + of_tower
    layers = layers_that_fit(free, layers=text["num_hidden_layers"], per_layer=per_layer, rest=rest)
    if layers == text["num_hidden_layers"]:
        return SIZE, "the shape of Qwen2.5-VL 3B, random weights"
    cut = copy.deepcopy(shape)
    cut["text"]["num_hidden_layers"] = layers
    workload.SIZES[f"{SIZE}-{layers}"] = cut
    return f"{SIZE}-{layers}", f"the shape of Qwen2.5-VL 3B with {layers} of {text['num_hidden_layers']} layers, which is what fits"


def open_model(folder: Path, settings: Settings) -> Any:
    """Load it as a run does, in bfloat16 on a GPU, with answers that cannot end."""
    from vlmrl.policy.load import load_policy, load_processor, quiet_transformers
    from vlmrl.types import PARTS

    quiet_transformers()
    bundle = load_processor(str(folder))
    never = dataclasses.replace(bundle, forbidden_ids=tuple(sorted({*bundle.forbidden_ids, *bundle.end_ids})))
    return load_policy(str(folder), never, device=settings.device, dtype="bfloat16" if settings.cuda else "float32", trains=PARTS)
