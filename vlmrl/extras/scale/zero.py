"""DeepSpeed ZeRO: moments and gradients in shards on the ranks (stage 2), or weights too (stage 3).

Weights that train and moments are float32; the forward pass casts, as without shards. DeepSpeed keeps one optimizer from `initialize` on,
so a stage starts from freshly loaded weights. It clips and updates in one call and refuses gradients that are not finite by itself:
`finish` makes the update and `apply` has nothing left to do. Checkpoints hold whole tensors, gathered one by one and written by rank 0,
in the files of `train.replicas`: slower than FSDP's shards, and readable by any number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vlmrl.config.section import OptimSection
from vlmrl.config.train import TrainSection
from vlmrl.errors import ConfigError
from vlmrl.extras.scale.prebuilt import prebuild
from vlmrl.extras.scale.root import Root
from vlmrl.extras.scale.threads import spread
from vlmrl.extras.scale.zero_shards import ZeroShards, initialize
from vlmrl.policy.model import Policy
from vlmrl.policy.root import Read
from vlmrl.train import dist
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.replicas import MOMENTS, WEIGHTS, require_same_names, write_whole
from vlmrl.train.tensors import read_tensors, require_finite
from vlmrl.train.updates import Complete, Copy, Named, Writer

MOMENT = ("exp_avg", "exp_avg_sq")


class Zero:
    """DeepSpeed's engine, over all ranks."""

    stage: int
    offloads: tuple[str, ...]
    per_stage = True
    read: Read = "placed"

    def __init__(self, cfg: TrainSection, device: torch.device, threads: int):
        """
        Raises:
            ConfigError: one process, or DeepSpeed does not load here.
        """
        if dist.world() == 1:
            raise ConfigError(f"train.sharding: '{cfg.sharding}' needs several processes (torchrun, accelerate launch); one process is ddp")
        if device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        try:
            import deepspeed  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError(
                f"train.sharding: '{cfg.sharding}' needs the deepspeed package, which does not load here ({error}); "
                "pip install 'vlmrl[deepspeed]', or take fsdp"
            ) from error
        deepspeed.logger.setLevel("ERROR")
        prebuild()
        self._offload, self._threads = cfg.offload, threads

    def wrap(self, policy: Policy) -> None:
        """Nothing yet for weights that train: DeepSpeed takes them with their optimizer. Others are cut up at once by stage 3."""
        if self.stage == 3 and not any(p.requires_grad for p in policy.model.parameters()):
            root = Root(policy.model)
            policy.shards = ZeroShards(initialize(root, 3, self._offload, None), root, self.stage)

    def updates(self, policy: Policy, named: Named, cfg: OptimSection) -> ZeroUpdates:
        return ZeroUpdates(policy, named, cfg, self.stage, self._offload, self._threads)


class Zero2(Zero):
    """Moments and gradients in shards."""

    stage = 2
    offloads = ("none", "optimizer")


class Zero3(Zero):
    """Weights too."""

    stage = 3
    offloads = ("none", "optimizer", "all")


class ZeroUpdates:
    """DeepSpeed's optimizer of one stage."""

    recovers = False

    def __init__(self, policy: Policy, named: Named, cfg: OptimSection, stage: int, offload: str, threads: int):
        self._policy, self._named, self._cfg, self._stage, self._offload = policy, dict(named), cfg, stage, offload
        self._threads = threads
        self._world = dist.world()
        self._engine: Any = None
        self._any = False
        """Whether the step has a gradient."""
        self._bounded = False
        """Whether DeepSpeed knows that it is complete."""

    @property
    def optimizer(self) -> Any:
        return self._engine.optimizer

    def zero(self) -> None:
        """Also what DeepSpeed keeps from step to step: there, a weight that a step does not use still has its last gradient."""
        self._engine.zero_grad()
        kept = [flat.grad for flat in self._flat() if flat.grad is not None]
        if self._stage == 3:
            kept.append(self.optimizer.grad_partitions_flat_buffer)
        elif self._offload != "none":
            kept += self.optimizer.accumulated_grads_in_cpu.values()
        for gradient in kept:
            gradient.zero_()
        if self._offload != "none":
            self.optimizer.norm_for_param_grads = {}

    def backward(self, scalar: torch.Tensor, *, last: bool, complete: Complete) -> None:
        """DeepSpeed divides by the number of ranks. A loss that is not finite must not count even if its gradient is."""
        scale = torch.where(torch.isfinite(scalar), float(self._world), float("nan")).to(scalar.dtype)
        # offloaded, a last backward would take only weights that it used to the machine's memory
        self._bounded = last and self._offload == "none"
        self._engine.set_gradient_accumulation_boundary(self._bounded)
        self._engine.backward(scalar * scale, scale_wrt_gas=False)
        self._any = True

    def finish(self, max_norm: float) -> float:
        if not self._any:  # no row that anything that trains has seen, on any rank
            return 0.0
        self._any = False
        if not self._bounded:  # also where nothing that trains took part in the last micro-batch
            self._engine.set_gradient_accumulation_boundary(True)
            self.optimizer.finalize_gradient_accumulation_boundary()
        self.optimizer.clip_grad = max_norm
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return float("inf") if self.optimizer.overflow or norm is None else float(norm)

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """DeepSpeed makes gradients and moments when it starts, and adds to gradients without a way back: what is added here must be 0."""
        try:
            yield
        finally:
            self.zero()
            self._any = False

    def apply(self) -> None:
        """`finish` has made the update."""

    def start(self, path: Path | None) -> None:
        tensors: dict[str, torch.Tensor] = {}
        if path is not None:
            weights, tensors = read_tensors(path / WEIGHTS), read_tensors(path / MOMENTS)
            require_same_names(path, weights, self._named)
            with torch.no_grad():
                for name, value in weights.items():
                    self._named[name].copy_(value)
        optimizer, _ = make_optimizer(list(self._named.items()), self._cfg)
        if self._offload != "none":
            spread(optimizer, self._threads)
        root = Root(self._policy.model)
        self._engine = initialize(root, self._stage, self._offload, optimizer)
        if self._offload != "none" and not hasattr(self.optimizer, "finalize_gradient_accumulation_boundary"):
            raise ConfigError(f"train.offload: '{self._offload}' needs deepspeed 0.19.8 or newer; older ones lose gradients of a tower")
        self._policy.shards = ZeroShards(self._engine, root, self._stage)
        if tensors:
            self._put_moments(tensors)

    def _put_moments(self, tensors: dict[str, torch.Tensor]) -> None:
        for flat in self._flat():
            moments = {kind: torch.zeros_like(flat) for kind in MOMENT}
            self.optimizer.optimizer.state[flat] = {"step": tensors["step"].clone(), **moments}
        for name, parameter in self._named.items():
            for kind in MOMENT:
                value = tensors[f"{kind}/{name}"].flatten()
                for own, of_whole in self._parts(parameter, kind):
                    own.copy_(value[of_whole])

    def _parts(self, parameter: Any, kind: str) -> Iterator[tuple[torch.Tensor, slice]]:
        """What this rank holds of a moment: (view into the optimizer's memory, its place in the flattened parameter)."""
        state = self.optimizer.optimizer.state
        if self._stage == 2:
            mapping = parameter._hp_mapping
            if mapping is not None:
                flat = self._flat()[mapping.param_group_index]
                at, of = mapping.hp_fragment_address, mapping.lp_fragment_address
                yield state[flat][kind][at.start : at.start + at.numel], slice(of.start, of.start + of.numel)
            return
        group, start, size = self.optimizer.grad_position[self.optimizer.get_param_id(parameter)]
        begin = size * dist.rank()
        filled = max(0, min(size, parameter.ds_numel - begin))  # the last ones are padded
        yield state[self._flat()[group]][kind][start : start + filled], slice(begin, begin + filled)

    def _moment(self, parameter: Any, kind: str) -> torch.Tensor:
        """A whole moment, on every rank."""
        shape = parameter.ds_shape if self._stage == 3 else parameter.shape
        value = torch.zeros(shape.numel(), device=self._policy.device)
        for own, of_whole in self._parts(parameter, kind):
            value[of_whole] = own
        with dist.collective("checkpoint"):
            torch.distributed.all_reduce(value)
        return value.view(shape)

    def _flat(self) -> list[torch.Tensor]:
        """The float32 tensors that AdamW works on."""
        zero = self.optimizer
        return list(zero.single_partition_of_fp32_groups if self._stage == 2 else zero.fp32_partitioned_groups_flat)

    def require_finite(self, what: str) -> None:
        own = {f"partition {i}": flat for i, flat in enumerate(self._flat())}
        for i, flat in enumerate(self._flat()):
            own |= {f"{kind} {i}": value for kind, value in self.optimizer.optimizer.state.get(flat, {}).items() if kind in MOMENT}
        require_finite(own, what)

    def writer(self, *, copy: Copy | None) -> Writer:
        """Of whole tensors, gathered into rank 0's memory: copies in any case."""
        del copy
        weights: dict[str, torch.Tensor] = {}
        moments: dict[str, torch.Tensor] = {}
        inner = self.optimizer.optimizer.state
        begun = all(flat in inner and inner[flat] for flat in self._flat())
        for name, parameter in self._named.items():
            self._keep(weights, name, self._policy.shards.full(parameter))
            for kind in MOMENT if begun else ():
                self._keep(moments, f"{kind}/{name}", self._moment(parameter, kind))
        if begun:
            moments["step"] = next(iter(inner.values()))["step"].clone()
        return partial(write_whole, weights=weights, moments=moments, groups={"groups": []})

    @staticmethod
    def _keep(out: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
        """Only rank 0 keeps what was gathered."""
        if dist.is_main():
            out[name] = value.detach().cpu().clone()
