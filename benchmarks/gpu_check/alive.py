"""What tensors take: on a device by its allocator, on a CPU by all that are alive."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor


def held(device: str) -> int:
    """Bytes of tensors that are alive. On a CPU: all that the garbage collector knows of."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if _is_tensor(t)}
    return sum(storages.values())


def _is_tensor(value: Any) -> bool:
    """By its own type: the class that a proxy claims may cost a warning, or an error."""
    return issubclass(type(value), Tensor) and value.device.type == "cpu" and value.layout == torch.strided
