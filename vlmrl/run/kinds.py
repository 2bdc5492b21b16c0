"""Kinds of stages. A kind is a section of the recipe and a function that opens the stage and runs its steps.

    class ListwiseSection(StageBase):
        kind: Literal["listwise"]
        ...

    @stage_kind(ListwiseSection)
    def listwise(session: Session, cfg: ListwiseSection) -> None:
        loop = open_stage(session, cfg)  # restored, if the run resumes inside the stage
        loop.run(lambda: listwise_step(loop.stage, cfg))

A plug-in's kind is known as soon as its module is imported, which happens before the recipe's stages are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vlmrl.config.schema import StageBase, register_section
from vlmrl.registry import Catalogue

if TYPE_CHECKING:
    from vlmrl.run.session import Session

Kind = Callable[..., None]
"""(session, section): open the stage, and train from its current step to its end."""

KINDS: Catalogue[Kind] = Catalogue("kind of stage")
"""`kind` of a recipe's stage -> what runs it."""


def stage_kind(section: type[StageBase]) -> Callable[[Kind], Kind]:
    """Decorator that registers a kind of stage with its section of the recipe.

    Raises:
        ValueError: the section has no `kind`, or the kind is there already.
    """

    def register(kind: Kind) -> Kind:
        name = register_section(section)
        KINDS.add(name, kind)
        return kind

    return register


def run_stage(session: Session, cfg: Any) -> None:
    """Run the stage that a section describes."""
    KINDS[cfg.kind](session, cfg)
