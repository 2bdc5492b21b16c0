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

FUSED_LOSSES = ("cross_entropy", "fused_linear_cross_entropy")
"""What the package's function must not put in place."""


def fuse(model: Any, *, device: torch.device) -> None:
    """Let the decoder of `model` (a transformers model with its head, loaded and not yet sharded) run Liger's kernels.

    Raises:
        ConfigError: the package is missing, has nothing for this family, or cannot run on the device. Nothing has been changed then.
    """
    if importlib.util.find_spec("liger_kernel") is None:
        raise ConfigError("model.kernels: 'liger' needs the package liger-kernel: pip install 'vlmrl[liger]'; or take 'torch'")
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(f"model.kernels: 'liger' runs on CUDA, and the model is on {device}; take 'torch'")
    kind = str(model.config.model_type)
    apply = getattr(importlib.import_module("liger_kernel.transformers"), f"apply_liger_kernel_to_{kind}", None)
    if apply is None:
        raise ConfigError(f"model.kernels: liger-kernel has no kernels for a '{kind}' model; take 'torch'")
    takes = inspect.signature(apply).parameters
    apply(model=model, **{name: False for name in FUSED_LOSSES if name in takes})
