"""Parts of a run that most recipes do without, by the key of the recipe that asks for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from vlmrl.registry import Catalogue
from vlmrl.train.updates import Copy, JobRanks, Updates


class WritesBeside(Protocol):
    """Writes checkpoints beside training (`checkpoint.asynchronous`). All ranks make it and call it at the same places."""

    @property
    def ranks(self) -> JobRanks:
        """The ranks, for the job."""
        ...

    def copy_of(self, updates: Updates) -> Copy:
        """Makes the copies that the job writes from."""
        ...

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, and return; the one before it has been settled."""
        ...

    def settle(self, *, wait: bool) -> bool:
        """Whether a job has ended that was not seen to end before; with `wait` it is waited for. Raises what the job has raised."""
        ...


class SecondPlace(Protocol):
    """The second place of a run's checkpoints (`checkpoint.mirror`)."""

    def push(self, run: Path, newest: Path) -> None:
        """Upload what a machine without `run` needs to go on from the checkpoint `newest`.

        Raises:
            StorageError: the other side refused; its older checkpoints are as they were.
        """
        ...

    def pull(self, into: Path) -> str | None:
        """Fetch the newest complete checkpoint, and the rest of the run, into a new folder; a line about it, None where there is none."""
        ...


OPTIONAL: Catalogue[Callable[..., Any]] = Catalogue("optional part of a run")
"""What makes each, called with what stands beside its key in the core."""
TOY: Catalogue[Callable[..., Any]] = Catalogue("generated world")
"""Worlds and tiny models that a recipe calls `toy`. `prepare` makes both for a run; the others are `extras.toy.base`'s functions."""
