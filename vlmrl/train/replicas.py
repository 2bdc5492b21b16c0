"""Replicas: every rank holds all weights and moments; gradients are summed by hand after the last micro-batch.

Nothing here waits inside a forward pass, so ranks may have different numbers of micro-batches, and a step that ran out of memory can be
tried again. Rank 0 writes checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vlmrl import fs
from vlmrl.config.section import OptimSection
from vlmrl.config.train import TrainSection
from vlmrl.errors import CheckpointError
from vlmrl.policy.model import Policy
from vlmrl.policy.root import Read
from vlmrl.train import dist
from vlmrl.train.adamw import make_optimizer, occupied
from vlmrl.train.tensors import load_optimizer, optimizer_tensors, read_tensors, require_finite, write_tensors
from vlmrl.train.updates import Complete, Copy, JobRanks, Named, Writer

WEIGHTS, MOMENTS, GROUPS = "weights.safetensors", "optimizer.safetensors", "optimizer.json"


class Replicas:
    """The engine `ddp`: everything on every rank, also where there is only one."""

    offloads: tuple[str, ...] = ("none",)
    per_stage = False
    read: Read = "placed"

    def __init__(self, cfg: TrainSection, device: torch.device, threads: int):
        del cfg, device, threads

    def wrap(self, policy: Policy) -> None:
        """Nothing: the weights are where they belong."""

    def updates(self, policy: Policy, named: Named, cfg: OptimSection) -> ReplicaUpdates:
        # torch's loop over many tensors at once needs one more set of float32 numbers: 15 GB of a 3B model
        fused = policy.device.type == "cuda"
        return ReplicaUpdates(named, *make_optimizer(named, cfg, policy.bundle.family.part_of, fused=fused))


class ReplicaUpdates:
    """One optimizer per rank, all with the same sums and so with the same result."""

    recovers = True

    def __init__(self, named: Named, optimizer: torch.optim.Optimizer, order: Sequence[str]):
        """`order`: names of the parameters in the optimizer's order."""
        self.optimizer = optimizer
        self._named, self._order = dict(named), order

    def zero(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, scalar: torch.Tensor, *, last: bool, complete: Complete) -> None:
        del last, complete
        scalar.backward()

    def finish(self, max_norm: float) -> torch.Tensor:
        parameters = list(self._named.values())
        dist.sum_gradients(parameters)
        # after the sum: the norm is that of the whole step, and the same on every rank
        return torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], max_norm)

    def occupied(self) -> AbstractContextManager[None]:
        return occupied(self.optimizer)

    def apply(self) -> None:
        self.optimizer.step()

    def require_finite(self, what: str) -> None:
        moments, _ = optimizer_tensors(self.optimizer, self._order)
        require_finite({**self._named, **moments}, what)

    def writer(self, *, copy: Copy | None) -> Writer:
        moments, groups = optimizer_tensors(self.optimizer, self._order)
        weights: dict[str, torch.Tensor] = dict(self._named)
        if copy is not None and dist.is_main():  # the others write nothing
            weights, moments = copy(weights), copy(moments)
        return partial(write_whole, weights=weights, moments=moments, groups=groups)

    def start(self, path: Path | None) -> None:
        if path is None:
            return
        weights = read_tensors(path / WEIGHTS)
        require_same_names(path, weights, self._named)
        with torch.no_grad():  # into the parameters that optimizer and model share
            for name, value in weights.items():
                self._named[name].copy_(value)
        state = json.loads((path / GROUPS).read_text(encoding="utf-8"))
        load_optimizer(self.optimizer, self._order, read_tensors(path / MOMENTS), state)


def write_whole(
    folder: Path,
    ranks: JobRanks,
    *,
    weights: Mapping[str, torch.Tensor],
    moments: Mapping[str, torch.Tensor],
    groups: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Write whole tensors on rank 0; every rank waits for them and shares a failure.

    Returns:
        Nothing of the manifest is known yet: an empty mapping.
    """

    def write() -> None:
        write_tensors(folder / WEIGHTS, weights)
        write_tensors(folder / MOMENTS, moments)
        fs.write_text(folder / GROUPS, json.dumps(groups, sort_keys=True))

    ranks.on_main(write)
    return {}


def require_same_names(path: Path, saved: Iterable[str], named: Iterable[str]) -> None:
    """Compare the names of saved weights with those of the weights that train.

    Raises:
        CheckpointError: the names differ.
    """
    if set(saved) != set(named):
        raise CheckpointError(f"{path}: its weights are not those that this stage trains (freeze or model changed)")
