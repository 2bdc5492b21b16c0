"""What the code must know of a model family, whichever it is: the shape that the special families and the generic one share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlmrl.types import MediaKind, Part

REPORT = "conform.json"
"""File beside a model that says what `vlmrl check` found of it (`families.report`)."""


def is_reported(path: str) -> bool:
    """Check whether such a report lies beside the model in a folder; most models have none."""
    return (Path(path).expanduser() / REPORT).is_file()


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What a family's tokenizer and processor say about token ids."""

    pad_ids: Mapping[MediaKind, int]
    """Placeholder that stands for one feature of a medium of this kind."""
    special_ids: frozenset[int]
    forbidden_ids: tuple[int, ...]
    """Visual control tokens: a policy must never sample them. Ascending."""
    end_ids: tuple[int, ...]
    """Tokens that end an answer."""


class Family(Protocol):
    """One kind of model."""

    @property
    def name(self) -> str:
        """`model_type` of its configs."""
        ...

    @property
    def choice(self) -> str:
        """What `model.family` names it by."""
        ...

    @property
    def own_code(self) -> bool:
        """Whether the core loads it and runs it by itself; else an optional part does, which is asked through `policy.foreign`."""
        ...

    @property
    def time_scaled(self) -> bool:
        """Whether temporal positions of a video run in seconds instead of steps."""
        ...

    @property
    def step_times(self) -> bool:
        """Whether the time is written before each temporal step of a video, with a span and positions of its own for each."""
        ...

    def tokens(self, processor: Any, path: str) -> Tokens:
        """Read the ids, from the processor that was found at `path`.

        Raises:
            ConfigError: the processor belongs to another family.
        """
        ...

    def cap_tiles(self, processor: Any, most: int, path: str) -> None:
        """Have the processor cut a picture into at most so many tiles (`media.max_tiles`).

        Raises:
            ConfigError: its pictures are not cut, or not into so few.
        """
        ...

    def adaptable(self, model: Any) -> Sequence[str]:
        """List the names of the linear layers of the language model that can carry adapters, in the order of the model."""
        ...

    def part_of(self, name: str) -> Part:
        """Name the part of the model that a parameter of this name belongs to."""
        ...
