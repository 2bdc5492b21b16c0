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
        """Their process group on the CPU; None for one process."""
        ...

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Around a block in which ranks wait for each other."""
        ...

    def gather(self, value: T) -> list[T]:
        """`value` of every rank, on every rank."""
        ...

    def run_synchronized(self, fn: Callable[[], T]) -> T:
        """Local work, then agree: every rank goes on, or every rank raises."""
        ...

    def on_main(self, fn: Callable[[], T]) -> T | None:
        """Work of rank 0; its failure is every rank's."""
        ...


Writer = Callable[[Path, JobRanks], "dict[str, dict[str, Any]]"]
"""Writes into a folder that is the same on all ranks; every rank calls it. Gives what is known of the files already: path -> its entry in
the manifest. Raises StorageError on every rank where the disk refused on one."""

Copy = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Copies what tensors hold now into the machine's memory; of tensors in shards, this rank's shards."""


class Complete(NamedTuple):
    """Whose gradients no later pass of a sum adds to. All ranks say the same."""

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
        """Add the gradient of one pass; `last` tells the last one of a step. The scalar is this rank's share of a loss that is a sum over
        all ranks."""
        ...

    def finish(self, max_norm: float) -> float | torch.Tensor:
        """Sum the gradients over all ranks and clip them; their norm before, which nobody has waited for. Called on every rank."""
        ...

    def occupied(self) -> AbstractContextManager[None]:
        """Context in which gradients and moments take the memory that they take from the second step on. Gradients are gone at its end."""
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
        """What writes weights that train and moments into a new folder. Called on every rank.

        Args:
            copy: it writes what they hold now, whenever it is called, from copies; one such writer at a time. None: what they hold then.
        """
        ...

    def start(self, path: Path | None) -> None:
        """Called once, before the stage's first pass, on every rank: read what a writer wrote, where it is resumed from a checkpoint.

        Raises:
            CheckpointError: the weights are not those that this stage trains.
        """
        ...


class Engine(Protocol):
    """How weights, gradients and moments lie on the ranks (`train.sharding`)."""

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
        """What this rank reads of a policy that is given to `wrap`."""
        ...

    def wrap(self, policy: Policy) -> None:
        """Place the weights of a policy that has just been loaded, adapters included. Called on every rank."""
        ...

    def updates(self, policy: Policy, named: Named, cfg: OptimSection) -> Updates:
        """The optimizer of a stage that trains the parameters `named`."""
        ...


ENGINES: Catalogue[type[Engine]] = Catalogue("training engine", elsewhere={"ddp": "vlmrl.train.replicas:Replicas"})
"""What `train.sharding` names."""


def open_engine(cfg: TrainSection, device: torch.device, threads: int = 0) -> Engine:
    """The engine of a recipe.

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
    """Let a transformers model compute activations again in its backward instead of keeping them, or keep them."""
    # the second is the name in the oldest release of transformers that is taken
    name = "activation_checkpointing" if hasattr(model, "activation_checkpointing_enable") else "gradient_checkpointing"
    if on:
        getattr(model, f"{name}_enable")({"use_reentrant": False})
    else:
        getattr(model, f"{name}_disable")()
