"""The weights of a policy that DeepSpeed has taken, as a forward pass, an export and generation see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from vlmrl.extras.scale.root import Root

T = TypeVar("T")


def initialize(root: Root, stage: int, offload: str, optimizer: torch.optim.Optimizer | None) -> Any:
    """DeepSpeed's engine around a root; without an optimizer it only cuts weights up."""
    import deepspeed  # pyright: ignore[reportMissingImports]

    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": False,
        "contiguous_gradients": False,
        # in numbers; DeepSpeed's default takes ten times the memory
        "reduce_bucket_size": 50_000_000,
    }
    if offload != "none" and optimizer is not None:
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,  # set before every step
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    return deepspeed.initialize(model=root, optimizer=optimizer, config=config)[0]


class ZeroShards:
    """The weights of one policy that DeepSpeed has taken."""

    taken = True

    def __init__(self, engine: Any, root: Root, stage: int):
        self._engine, self._root, self._stage = engine, root, stage
        self._gathered = False

    @property
    def open(self) -> bool:
        return self._stage < 3

    @property
    def collective(self) -> bool:
        """Also with stage 2: it sums gradients while the backward pass runs."""
        return not self._gathered

    def run(self, fn: Callable[[], T]) -> T:
        return fn() if self._gathered else self._engine(fn)

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self._gathered or self._stage < 3:
            before, self._gathered = self._gathered, True
            try:
                yield
            finally:
                self._gathered = before
            return
        import deepspeed  # pyright: ignore[reportMissingImports]

        offload = self._offload()
        with deepspeed.zero.GatheredParameters(list(self._root.parameters())):
            # its hooks would gather and free layer by layer
            parameters: Any = self._root.parameters()
            for parameter in parameters:
                parameter.ds_active_sub_modules.clear()
            for hook in (*offload.forward_hooks, *offload.backward_hooks):
                hook.remove()
            offload.forward_hooks, offload.backward_hooks = [], []
            self._gathered = True
            try:
                yield
            finally:
                self._gathered = False
                offload._register_deepspeed_module(offload.module)

    def _offload(self) -> Any:
        optimizer = self._engine.optimizer
        return optimizer.parameter_offload if hasattr(optimizer, "parameter_offload") else optimizer

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._stage < 3 or not hasattr(tensor, "ds_id"):
            return tensor.detach()
        import deepspeed  # pyright: ignore[reportMissingImports]

        with deepspeed.zero.GatheredParameters([tensor]):
            return tensor.detach().clone()

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.ds_tensor if hasattr(tensor, "ds_tensor") else tensor  # pyright: ignore[reportAttributeAccessIssue]

    def put(self, value: torch.Tensor, tensor: torch.Tensor) -> None:
        tensor.copy_(value)
