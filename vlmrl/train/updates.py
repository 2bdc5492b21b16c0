"""What every training engine does: place a policy's weights on the ranks, sum gradients, update, save. One file per engine beside this.

The trainer knows the two protocols here and nothing of any engine: `Engine` lives as long as the process and wraps policies,
`Updates` lives as long as a stage and owns its optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch

from vlmrl.errors import ConfigError
from vlmrl.policy.root import Read
from vlmrl.registry import Catalogue, nearest

if TYPE_CHECKING:
    from vlmrl.config.section import OptimSection
    from vlmrl.config.train import TrainSection
    from vlmrl.policy.model import Policy

T = TypeVar("T")
Named = Sequence[tuple[str, torch.nn.Parameter]]


class JobRanks(Protocol):
    """The ranks of a job: `train.dist` in the main thread, or a group of their own in one beside it."""

    def control(self) -> Any:
        """Return their process group on the CPU; None for one process."""
        ...

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Mark a block in which ranks wait for each other, for the watch over lost ranks."""
        ...

    def gather(self, value: T) -> list[T]:
        """Collect `value` of every rank, in rank order, on every rank."""
        ...

    def run_synchronized(self, fn: Callable[[], T]) -> T:
        """Do local work, then agree: every rank goes on, or every rank raises."""
        ...

    def on_main(self, fn: Callable[[], T]) -> T | None:
        """Do work on rank 0 alone; its failure is every rank's."""
        ...


Writer = Callable[[Path, JobRanks], "dict[str, dict[str, Any]]"]
"""Writes into a folder that is the same on all ranks; every rank calls it. Gives what is known of the files already: path -> its entry in
the manifest. Raises StorageError on every rank where the disk refused on one."""

Copy = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Copies what tensors hold now into the machine's memory; of tensors in shards, this rank's shards."""


class Complete(NamedTuple):
    """Which gradients are complete with a pass, because no later pass of the step adds to them. The same on all ranks."""

    tower: bool
    """Of the tower and its projector; a pass without media has none for them."""
    rest: bool


class Updates(Protocol):
    """The optimizer of a stage and the gradients that it works on."""

    optimizer: Any
    """Has `param_groups`, whose `lr` the stage sets."""

    recovers: bool
    """Whether a step that ran out of memory can be tried again with smaller micro-batches. It cannot where the other ranks are waiting in
    the middle of a forward pass."""

    def zero(self) -> None:
        """Drop all gradients."""
        ...

    def backward(self, scalar: torch.Tensor, *, last: bool, complete: Complete) -> None:
        """Add the gradient of one pass.

        Args:
            scalar: this rank's share of a loss that is a sum over all ranks, divided already by the denominator of the whole step.
            last: whether it is the step's last pass.
            complete: which gradients are then complete.
        """
        ...

    def finish(self, max_norm: float) -> float | torch.Tensor:
        """Sum the gradients over all ranks and clip them to the norm `max_norm`. Called on every rank.

        Returns:
            Their norm over all ranks before clipping; as a tensor, one that the host has not waited for yet.
        """
        ...

    def occupied(self) -> AbstractContextManager[None]:
        """Open a context in which gradients and moments take the memory that they take from the second step on. It drops the gradients."""
        ...

    def apply(self) -> None:
        """Make the update."""
        ...

    def require_finite(self, what: str) -> None:
        """Look at the weights that train and their moments, as far as this rank holds them.

        Raises:
            NumericsError: one is not finite.
        """
        ...

    def writer(self, *, copy: Copy | None) -> Writer:
        """Make what writes the weights that train and their moments into a new folder. Called on every rank.

        Args:
            copy: copies tensors now, and the writer writes the copies, whenever it is called; one such writer at a time. None: the writer
                writes what the tensors hold when it is called.
        """
        ...

    def start(self, path: Path | None) -> None:
        """Read what a writer wrote, where the stage is resumed from a checkpoint. Called once, before its first pass, on every rank.

        Raises:
            CheckpointError: the weights are not those that this stage trains.
        """
        ...


class Engine(Protocol):
    """A training engine: how weights, gradients and moments lie on the ranks (`train.sharding`)."""

    offloads: tuple[str, ...]
    """What it can keep in the machine's memory (`train.offload`)."""
    per_stage: bool
    """Whether a stage needs weights that no earlier stage has trained with this engine, and so loads its own."""

    def __init__(self, cfg: TrainSection, device: torch.device, threads: int):
        """
        Raises:
            ConfigError: it cannot run here.
        """
        ...

    @property
    def read(self) -> Read:
        """Say what this rank loads of a model before `wrap`: its weights, or names and shapes alone."""
        ...

    def wrap(self, policy: Policy) -> None:
        """Place the weights of a policy that has just been loaded, adapters included. Called on every rank."""
        ...

    def updates(self, policy: Policy, named: Named, cfg: OptimSection) -> Updates:
        """Make the optimizer of a stage that trains the parameters `named`."""
        ...


ENGINES: Catalogue[type[Engine]] = Catalogue("training engine", elsewhere={"ddp": "vlmrl.train.replicas:Replicas"})
"""What `train.sharding` names."""


def open_engine(cfg: TrainSection, device: torch.device, threads: int = 0) -> Engine:
    """Make the training engine that a recipe names.

    Args:
        threads: of an update in the machine's memory; 0: this rank's share of the cores.

    Raises:
        ConfigError: unknown, or it cannot run here.
    """
    if cfg.sharding not in ENGINES:
        raise ConfigError(f"train.sharding: unknown '{cfg.sharding}'{nearest(cfg.sharding, list(ENGINES))}")
    make = ENGINES[cfg.sharding]
    if cfg.offload not in make.offloads:
        raise ConfigError(f"train.offload: '{cfg.offload}' is not for '{cfg.sharding}', which has {', '.join(make.offloads)}")
    return make(cfg, device, threads)


def recompute(model: Any, on: bool = True) -> None:
    """Switch activation checkpointing of a transformers model on or off."""
    # the second is the name in the oldest release of transformers that is taken
    name = "activation_checkpointing" if hasattr(model, "activation_checkpointing_enable") else "gradient_checkpointing"
    if on:
        # the reentrant form gives no gradients where none of a layer's inputs has one, as behind frozen embeddings under LoRA
        getattr(model, f"{name}_enable")({"use_reentrant": False})
    else:
        getattr(model, f"{name}_disable")()
