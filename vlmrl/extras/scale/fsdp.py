"""FSDP2: weights, gradients and moments in shards, one per rank, gathered layer by layer for a forward pass.

Every block of the tower, the tower, every layer of the decoder and the rest are units that are gathered and freed one after the other.
In the shards weights are float32 where they train, else of the compute type; what is gathered has the compute type. With
`train.shard_size` below the number of ranks the shards are kept several times (HSDP): gathered within a group, gradients summed over
the groups once a step. Rank 0 alone reads a model (`scale.spread`). Checkpoints hold the shards (`scale.files`).

Our loss is a sum over ranks that is divided already, so gradients are summed and never averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed.tensor import DTensor

from vlmrl.config.section import OptimSection
from vlmrl.config.train import TrainSection
from vlmrl.errors import ConfigError
from vlmrl.extras.scale import files
from vlmrl.extras.scale.root import Root
from vlmrl.extras.scale.spread import fill
from vlmrl.extras.scale.threads import spread
from vlmrl.policy.model import Policy
from vlmrl.policy.root import Read
from vlmrl.train import dist
from vlmrl.train.adamw import make_optimizer, occupied
from vlmrl.train.tensors import optimizer_tensors, require_finite
from vlmrl.train.updates import Complete, Copy, Named, Writer

T = TypeVar("T")


class Fsdp:
    """Shards over all ranks, or over groups of `train.shard_size`."""

    offloads: tuple[str, ...] = ("none", "all")
    per_stage = False

    @property
    def read(self) -> Read:
        return "host" if dist.is_main() else "none"

    def __init__(self, cfg: TrainSection, device: torch.device, threads: int):
        """
        Raises:
            ConfigError: one process, or a `shard_size` that does not divide the ranks.
        """
        from torch.distributed.device_mesh import init_device_mesh

        self._offload, self._threads = cfg.offload == "all", threads
        world = dist.world()
        if world == 1:
            raise ConfigError("train.sharding: 'fsdp' needs several processes (torchrun, accelerate launch); one process is ddp")
        size = cfg.shard_size or world
        if world % size:
            raise ConfigError(f"train.shard_size: {size} does not divide the {world} ranks")
        if size == world:
            self._mesh = init_device_mesh(device.type, (world,))
        else:
            self._mesh = init_device_mesh(device.type, (world // size, size), mesh_dim_names=("replicate", "shard"))

    def wrap(self, policy: Policy) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

        half = policy.compute if policy.compute != torch.float32 else None
        # inputs are left alone: rotary factors stay float32, as without shards
        precision = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
        options: dict[str, Any] = {"mesh": self._mesh, "mp_policy": precision}
        if self._offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=policy.device.type == "cuda")
        parts, root = parts_of(policy), Root(policy.model)
        dist.meet("the weights of the model")
        for unit in (*parts.blocks, *parts.towers, *parts.layers, root):
            fill(unit, policy.device)
            fully_shard(unit, **options)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        policy.shards = FsdpShards(root)

    def updates(self, policy: Policy, named: Named, cfg: OptimSection) -> FsdpUpdates:
        assert isinstance(policy.shards, FsdpShards)
        # on a CPU nothing is offloaded really, and the update keeps the bits that it has without
        fused = self._offload and policy.device.type == "cuda"
        optimizer, order = make_optimizer(named, cfg, policy.bundle.family.part_of, fused=fused)
        if self._offload:
            spread(optimizer, self._threads)
        return FsdpUpdates(policy.shards.root, parts_of(policy).towers, named, optimizer, order)


class Parts(NamedTuple):
    """Modules that are gathered one after the other, beside the rest of the model."""

    blocks: Sequence[Any]
    """Of the towers."""
    towers: Sequence[Any]
    layers: Sequence[Any]
    """Of the decoder."""


def parts_of(policy: Policy) -> Parts:
    """What a policy's weights are gathered by."""
    if policy.subject is not None:
        return Parts(policy.subject.blocks, policy.subject.towers, policy.subject.layers)
    core = policy.core
    return Parts(core.visual.blocks, [core.visual], core.language_model.layers)


class FsdpShards:
    """The weights of one policy."""

    taken = True
    open = True

    def __init__(self, root: Root):
        from torch.distributed.fsdp import FSDPModule

        self.root: Any = root
        self._units: list[Any] = [module for module in root.modules() if isinstance(module, FSDPModule)]
        self._gathered = False

    @property
    def collective(self) -> bool:
        return not self._gathered

    def run(self, fn: Callable[[], T]) -> T:
        if self._gathered:
            return fn()
        out: T = self.root(fn)
        results: Any = out if isinstance(out, tuple) else (out,)
        if not any(result.requires_grad for result in results):
            self.root.reshard()  # else the backward pass does it, which there is not where nothing that trains was used
        return out

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self._gathered:
            yield
            return
        if self._units[0]._get_fsdp_state()._is_root is None:
            self.root(lambda: ())  # FSDP learns in its first forward which of its modules is the outermost
        for unit in self._units:
            unit.unshard()
            unit.set_reshard_after_forward(False, recurse=False)
        self._gathered = True
        try:
            yield
        finally:
            self._gathered = False
            for unit in self._units:
                unit.set_reshard_after_forward(unit is not self.root, recurse=False)
                unit.reshard()

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def put(self, value: torch.Tensor, tensor: torch.Tensor) -> None:
        if isinstance(tensor, DTensor):
            from torch.distributed.tensor import distribute_tensor

            value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(value)


class FsdpUpdates:
    """AdamW over shards."""

    recovers = False

    def __init__(self, root: Any, towers: Sequence[Any], named: Named, optimizer: torch.optim.Optimizer, order: list[str]):
        """`root`, `towers`: units of FSDP."""
        self.optimizer = optimizer
        self._root, self._towers = root, towers
        self._named, self._order = dict(named), order

    def zero(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, scalar: torch.Tensor, *, last: bool, complete: Complete) -> None:
        """Gradients are summed within a group in every pass, and over the groups (HSDP) when they are complete. Until then each group keeps
        its own sums; what is complete too early or never would be a wrong gradient."""
        del last
        self._root.set_requires_all_reduce(complete.rest)
        for tower in self._towers:
            tower.set_requires_all_reduce(complete.tower)
        scalar.backward()

    def finish(self, max_norm: float) -> torch.Tensor:
        """Backward has summed the gradients; the norm of shards is that of the whole."""
        parameters = [p for p in self._named.values() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def occupied(self) -> AbstractContextManager[None]:
        return occupied(self.optimizer)

    def apply(self) -> None:
        self.optimizer.step()

    def require_finite(self, what: str) -> None:
        moments, _ = optimizer_tensors(self.optimizer, self._order)
        tensors = {**self._named, **moments}
        require_finite({name: t.to_local() if isinstance(t, DTensor) else t for name, t in tensors.items()}, what)

    def writer(self, *, copy: Copy | None) -> Writer:
        tensors, groups = files.of(self._named, self.optimizer, self._order)
        return partial(files.save, tensors=tensors if copy is None else copy(tensors), groups=groups)

    def start(self, path: Path | None) -> None:
        if path is not None:
            files.restore(path, self._named, self.optimizer, self._order)
