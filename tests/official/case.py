"""States what a case of an official annotation file is: where the file is, how it is laid out, and what its preparation has to give.

A case holds facts only (a commit, numbers, a few ids and answers). The files themselves are fetched by whoever runs the tests.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

How = Literal["unchanged", "renamed", "poured"]

MEANING: Mapping[How, str] = {
    "unchanged": "the file as it is, under its own name",
    "renamed": "the file as it is, under the name that the download layout has",
    "poured": "its content in the columns that the download has: shows the rules of content, not the layout",
}
_MACHINERY = ("case", "layout", "statements", "test_official")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Official annotations of one split, and what `prepare` has to make of them."""

    repository: str
    """`owner/name` on GitHub."""
    commit: str
    date: str
    """Of the commit, YYYY-MM-DD: the version that was read."""
    files: Mapping[str, str]
    """Path in the repository -> its place below the root of the download. A path that ends in `/` is all that is below it."""
    how: How
    split: str
    records: int
    """Official records read, in the unit that the card counts."""
    rows: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Begin of a reason -> records left out for it."""
    looks: Mapping[str, Mapping[str, Any]]
    """Row id -> values that were read in the official file by eye. Objects are compared by the keys given."""
    options: Mapping[str, str] = field(default_factory=dict)
    pour: Callable[[Path], None] | None = None
    """For `poured`: given the root with `files` in place, writes the download there."""
    folders: tuple[str, ...] = ()
    """Folders of the download that the preparation looks for before it knows a file in them."""
    sizes: Callable[[Path], Mapping[str, tuple[int, int]]] | None = None
    """For a preparation that measures pictures: given the root, path of each picture -> (width, height)."""
    copied_from: str = ""
    """Who published the file, where the repository is not theirs and carries a copy."""
    part: str = ""
    """What the files hold, where that is not all of the split; the card's count is then not compared."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit) or not re.fullmatch(r"\d{4}-\d\d-\d\d", self.date):
            raise ValueError(f"{self.repository}: commit {self.commit!r} or date {self.date!r} is not one")
        if (self.pour is not None) != (self.how == "poured"):
            raise ValueError(f"{self.repository}, {self.split}: 'pour' goes with how='poured', and only with it")
        if not self.looks:
            raise ValueError(f"{self.repository}, {self.split}: no row to look at; counts alone do not show that the content is right")

    @property
    def name(self) -> str:
        """The split with its options, as they stand on the command line."""
        return " ".join([f"--split {self.split}", *(f"--{key} {value}" for key, value in self.options.items())])


def cases() -> dict[str, tuple[Case, ...]]:
    """Name of the data set -> its cases, from the modules beside this one."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name not in _MACHINERY)
    return {name: tuple(importlib.import_module(f"tests.official.{name}").CASES) for name in names}
