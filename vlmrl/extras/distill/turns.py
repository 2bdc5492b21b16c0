"""What the teacher sees of the turns of episodes: every screen under its settings, in the prompts that the sampler was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vlmrl.data.encode import Encoder
from vlmrl.errors import DataError, MediaError, RowError
from vlmrl.extras.distill.view import SeenRecord, TeacherView, hint_of
from vlmrl.policy.pack import Row
from vlmrl.registry import Catalogue
from vlmrl.types import Group, MediaRef, Prompt, ScoredGroup

if TYPE_CHECKING:
    from vlmrl.run.loop import Loop

Turn = tuple[Prompt, Sequence[MediaRef]]
"""The prompt of a turn, with the screens that it shows."""


class Again(Protocol):
    """Makes the prompts of turns once more, with the media of an encoder."""

    @property
    def encoder(self) -> Encoder: ...

    def __call__(self, group: Group, told: str) -> Sequence[Turn]:
        """Make those of a group, in the order of its rollouts; `told` stands behind the question that a prompt begins with."""
        ...


TURNS: Catalogue[Callable[[Loop, Callable[[Path], Encoder]], Again]] = Catalogue("conversation")
"""`again`: (loop of the stage, encoder of media in a folder) -> what makes them again."""


@dataclass(frozen=True, kw_only=True)
class TurnsView:
    """Rows of turns behind the teacher's prompts. `record` gets a line for each screen, once both sides are proven to have seen it."""

    again: Again
    view: TeacherView
    """Of the screens."""
    record: SeenRecord

    def rows_of(self, rows: Sequence[Row], groups: Sequence[tuple[int, ScoredGroup]]) -> list[Row]:
        """Put the same answers behind the teacher's prompts. `groups`: (place, group) of the rows, whose rollouts these are in order.

        Raises:
            DataError: a screen is not the one that the student saw, or a task has no hint; names the task's row.
        """
        prompts = [prompt for _, scored in groups for prompt in self.of(scored.group)]
        return [dataclasses.replace(row, prompt=prompt) for row, prompt in zip(rows, prompts, strict=True)]

    def of(self, group: Group) -> list[Prompt]:
        """Make the teacher's prompts of a group's turns.

        Raises:
            DataError: as `rows_of`.
        """
        task = group.prompt.sample
        try:
            made = self.again(group, hint_of(task, self.view.hint))
        except (MediaError, RowError) as error:
            raise DataError(f"row '{task.id}' ({task.source}): a turn of its episodes cannot be shown to the teacher: {error}") from error
        pairs = [(group.trained_under(one), *turn) for one, turn in zip(group.rollouts, made, strict=True)]
        # turns that saw the same share their prompts, which are proven once
        for student, prompt, shown in {(id(own), id(other)): (own, other, shown) for own, other, shown in pairs}.values():
            # of the task, which is what the message names
            self.view.prove(dataclasses.replace(student, sample=dataclasses.replace(task, media=tuple(shown), media_root="")), prompt)
            for ref, own, other in zip(shown, student.media, prompt.media, strict=True):
                sides = {"student": own, "teacher": other}
                self.record.note(ref.path, {name: {"media": [one.key], "tokens": one.tokens} for name, one in sides.items()})
        return [prompt for prompt, _ in made]
