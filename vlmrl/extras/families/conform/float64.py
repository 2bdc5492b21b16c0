"""Everything in float64: models of transformers compute some things in float32 whatever their weights are (norms, softmax, the state of a
delta net, a router), and that rounding would hide small mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Throughout(TorchFunctionMode):
    """Wherever float32 is asked for by name, float64 is given."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        given = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **given)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def throughout(on: bool) -> AbstractContextManager[Any]:
    """The context, or none."""
    return Throughout() if on else nullcontext()
