"""`model.kernels: liger`: RMSNorm, SwiGLU and rotary positions of a model by Liger Kernel's Triton programs (arXiv:2410.10989).

The package brings one function for each family, which changes the modules of the model and, for the rotary positions, the family's
file in transformers: every model of that family in this process then computes them so. Names and values of weights stay as they are.
The fused losses are left out: log-probs and entropy come from `policy.head`, which any loss can follow.

Values differ from torch's by rounding, so the choice belongs to a run's fixed options like every key of `model`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from typing import Any

import torch

from vlmrl.errors import ConfigError
from vlmrl.families import registry
from vlmrl.policy.load import model_type

FUSED_LOSSES = ("cross_entropy", "fused_linear_cross_entropy")
"""What the package's function must not put in place."""


def fuse(model: Any, *, device: torch.device) -> None:
    """Let the decoder of `model` (a transformers model with its head, loaded and not yet sharded) run Liger's kernels.

    Raises:
        ConfigError: the package is missing, has nothing for this family, or cannot run on the device. Nothing has been changed then.
    """
    if not installed():
        raise ConfigError("model.kernels: 'liger' needs the package liger-kernel: pip install 'vlmrl[liger]'; or take 'torch'")
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(f"model.kernels: 'liger' runs on CUDA, and the model is on {device}; take 'torch'")
    kind = str(model.config.model_type)
    apply = _function(kind)
    if apply is None:
        raise ConfigError(f"model.kernels: liger-kernel has no kernels for a '{kind}' model; take 'torch'")
    takes = inspect.signature(apply).parameters
    apply(model=model, **{name: False for name in FUSED_LOSSES if name in takes})


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("liger_kernel") is not None


def suits(path: str, *, family: str, revision: str | None) -> bool:
    """Whether the package is there and has kernels for this model, whose forward is the trainer's own. `family`: `model.family`.

    Raises:
        ConfigError: the model is not found, or no family takes it.
    """
    kind = model_type(path, revision) if installed() else None
    return kind is not None and registry.choose(family, kind, path, revision).own_code and _function(kind) is not None


def _function(kind: str) -> Any:
    """The package's function for a type of model, or None."""
    return getattr(importlib.import_module("liger_kernel.transformers"), f"apply_liger_kernel_to_{kind}", None)
