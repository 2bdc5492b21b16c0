"""The report of `vlmrl check` beside a model, for those who look at it before they use the model. An optional part reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from vlmrl.families.base import REPORT, is_reported
from vlmrl.registry import Catalogue


class Report(Protocol):
    """What the file says."""

    def admitted(self) -> tuple[str, ...]:
        """List the layouts that are exact for the model, with the version of transformers that is installed."""
        ...

    def lacks(self, promise: str, *, here: bool = True) -> str:
        """Say why a promise does not hold of the model, with `here` by the versions that are installed; nothing where it holds."""
        ...

    def check(self) -> None:
        """Check, before the model is used, that the report does not speak against that.

        Raises:
            ConfigError: a promise that is needed was not kept, with the versions that are installed here.
        """
        ...

    def told(self) -> tuple[str, Literal["ok", "absent", "problem"], str]:
        """Tell (what was found, how good that is, what to do) for `vlmrl check`."""
        ...


REPORTS: Catalogue[Callable[[str], Report]] = Catalogue("report beside a model")
"""Name of the file -> what reads it in the folder of a model."""


def report_of(path: str) -> Report | None:
    """Read the report beside the model in a folder; None where there is none, as for most.

    Raises:
        ConfigError: the report cannot be read.
    """
    return REPORTS[REPORT](path) if is_reported(path) else None
