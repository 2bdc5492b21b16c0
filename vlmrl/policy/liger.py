"""`model.kernels: liger`: RMSNorm and SwiGLU of a model by Liger Kernel's Triton programs (arXiv:2410.10989).

The two programs are called by the modules themselves, which are known by what they hold. The package's functions for whole families are not
used: each belongs to one release of transformers and takes the model's loss and, for the whole process, its rotary positions along. Names
and values of weights stay as they are. Log-probs and entropy come from `policy.head`, which any loss can follow.

Values differ from torch's by rounding, so the choice belongs to a run's fixed options like every key of `model`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from vlmrl.errors import ConfigError
from vlmrl.families import registry
from vlmrl.policy.load import model_type

CLOSE, CLOSE_16 = 1e-4, 2e-2
"""Largest difference of a program's output to torch's, as a share of the largest value, in 32 and in 16 bits."""


def fuse(model: Any, *, device: torch.device) -> None:
    """Let `model` (a transformers model with its head, loaded and not yet sharded) run Liger's programs.

    Raises:
        ConfigError: the package is missing, does not give what torch gives, has nothing for this model, or cannot run on the device.
            Nothing has been changed then.
    """
    if not installed():
        raise ConfigError("model.kernels: 'liger' needs the package liger-kernel: pip install 'vlmrl[liger]'; or take 'torch'")
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(f"model.kernels: 'liger' runs on CUDA, and the model is on {device}; take 'torch'")
    found = [(module, forward) for module in model.modules() if (forward := _forward_of(module)) is not None]
    if not found:
        raise ConfigError(f"model.kernels: liger-kernel has no kernels for a '{model.config.model_type}' model; take 'torch'")
    # before the first is replaced, so that a model is changed as a whole or not at all
    for forward in (_norm, _mlp):
        first = next((module for module, own in found if own is forward), None)
        if first is not None:
            _check(first, forward, device)
    for module, forward in found:
        module.forward = MethodType(forward, module)


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("liger_kernel") is not None


def suits(path: str, *, family: str, revision: str | None) -> bool:
    """Whether the package is there, and the forward of this model is the trainer's own. `family`: `model.family`.

    Raises:
        ConfigError: the model is not found, or no family takes it.
    """
    return installed() and own_forward(path, family=family, revision=revision)


def own_forward(path: str, *, family: str, revision: str | None) -> bool:
    """Whether the forward of this model is the trainer's own.

    Raises:
        ConfigError: as `suits`.
    """
    kind = model_type(path, revision)
    return kind is not None and registry.choose(family, kind, path, revision).own_code


def _forward_of(module: torch.nn.Module) -> Callable[[Any, Tensor], Tensor] | None:
    """Choose the forward that takes the place of a module's, or None."""
    if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
        return _norm
    gated = all(isinstance(getattr(module, name, None), torch.nn.Module) for name in ("gate_proj", "up_proj", "down_proj"))
    return _mlp if gated and "silu" in type(getattr(module, "act_fn", None)).__name__.lower() else None


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction  # pyright: ignore[reportMissingImports]

    # not in place: the gradient that comes in belongs to the residual stream, too
    return LigerRMSNormFunction.apply(hidden_states, self.weight, self.variance_epsilon, 0.0, "llama", False)


def _mlp(self: Any, hidden_state: Tensor) -> Tensor:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction  # pyright: ignore[reportMissingImports]

    return self.down_proj(LigerSiLUMulFunction.apply(self.gate_proj(hidden_state), self.up_proj(hidden_state)))


def _check(module: Any, forward: Callable[[Any, Tensor], Tensor], device: torch.device) -> None:
    """Compare the program with the module that it would stand for, on a few numbers.

    Raises:
        ConfigError: it fails, or gives something else. This release of the package does not fit.
    """
    weight, width = (module.weight, len(module.weight)) if forward is _norm else (module.gate_proj.weight, module.gate_proj.in_features)
    dtype = weight.dtype if weight.is_floating_point() else torch.float32
    given = torch.linspace(-2, 2, 3 * width, device=device, dtype=dtype).view(3, width)
    try:
        with torch.no_grad():
            wanted, got = module(given).float(), forward(module, given).float()
        apart = float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
    except Exception as error:
        raise ConfigError(f"model.kernels: this liger-kernel does not run here ({type(error).__name__}: {error}); take 'torch'") from error
    if not apart <= (CLOSE if dtype == torch.float32 else CLOSE_16):
        raise ConfigError(f"model.kernels: this liger-kernel gives other numbers than torch ({apart:.1e} of the largest); take 'torch'")
