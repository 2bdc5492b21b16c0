"""Kinds of stages. A kind is one file: a section of the recipe, and a class that builds itself from the session and runs.

    class ListwiseSection(StageBase):
        kind: Literal["listwise"]
        ...

    @stage_kind(ListwiseSection)
    class Listwise:
        @classmethod
        def build(cls, session: Session, cfg: ListwiseSection) -> Listwise: ...

        def run(self) -> None: ...

A plug-in's kind is known as soon as its module is imported, which happens before the recipe's stages are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vlmrl.config.schema import StageBase, register_section

if TYPE_CHECKING:
    from vlmrl.train.session import Session


class Stage(Protocol):
    """A stage that is ready to run: restored, if the run resumes inside it."""

    def run(self) -> None:
        """Train from the current step to the stage's end."""
        ...


class Kind(Protocol):
    """What `stage_kind` decorates."""

    @classmethod
    def build(cls, session: Session, cfg: Any) -> Stage: ...


K = TypeVar("K", bound=type[Kind])

KINDS: dict[str, type[Kind]] = {}
"""`kind` of a recipe's stage -> what builds it."""


def stage_kind(section: type[StageBase]) -> Callable[[K], K]:
    """Decorator that registers a kind of stage with its section of the recipe.

    Raises:
        ValueError: the section has no `kind`, or the kind is there already.
    """

    def register(kind: K) -> K:
        name = register_section(section)
        if name in KINDS:
            raise ValueError(f"stage kind '{name}' is registered twice")
        KINDS[name] = kind
        return kind

    return register


def build(session: Session, cfg: StageBase) -> Stage:
    """The stage that a section describes."""
    return KINDS[cfg.kind].build(session, cfg)
