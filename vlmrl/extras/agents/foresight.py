"""Which episodes come next: the rest of a planned step, and the next step's, guessed as a resumed process would plan it.

A guess that turns out wrong costs the worlds that were begun for it and nothing else. Behind a wrong one nothing is begun until a guess has
been right again: a sampler that follows what the policy learns is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlmrl.types import Sample


@dataclass(frozen=True, kw_only=True)
class Coming:
    """A group that is or will be planned."""

    place: int
    """In the step's plan."""
    sample: Sample
    attempts: int


class Foresight:
    """What this rank of a stage plays, step by step. A step is planned by one thread and asked about by another that plays it."""

    def __init__(self, guess: Callable[[], Sequence[Coming]] = tuple, *, steps: int = 0):
        """`guess` what the sampler would plan now; the stage has so many `steps`."""
        self._guess, self._steps = guess, steps
        self._plans: dict[int, Sequence[Coming]] = {}
        """Step -> its groups; the last one is guessed."""
        self._trusted = True

    def plan(self, step: int, groups: Sequence[Coming]) -> None:
        """A step is planned, or more groups of it."""
        guessed = self._plans.get(step)
        if guessed is not None and step == max(self._plans):
            self._trusted = _names(guessed) == _names(groups)
        plans = {at: plan for at, plan in self._plans.items() if step - 1 <= at < step} | {step: groups}
        if step + 1 < self._steps:
            plans[step + 1] = self._guess()
        self._plans = plans

    def behind(self, step: int, place: int, most: int) -> list[tuple[int, Coming]]:
        """(step, group) of what follows the group at a place of a step, `most` groups of it."""
        plans = self._plans
        own = plans.get(step, ())
        rest = [(step, group) for group in own if group.place > place]
        guessed = step + 1 == max(plans, default=0)
        after = plans.get(step + 1, ()) if self._trusted or not guessed else ()
        return [*rest, *((step + 1, group) for group in after)][:most]


def _names(groups: Sequence[Coming]) -> list[tuple[int, str, int]]:
    return [(group.place, group.sample.id, group.attempts) for group in groups]
