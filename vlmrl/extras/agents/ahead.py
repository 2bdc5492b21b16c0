"""Episodes ahead of need: worlds that are started before anybody asks for them, and one for all attempts that did the same so far.

Which tasks and seeds come next does not depend on the policy, so their worlds can begin while it samples and learns. Attempts with the
same task and seed begin alike and are one until they act differently (`agents.episodes`): the first of them shows its screen to all, and
the others' worlds start while that is answered. When such a world is used it has to have shown the same, or its attempt ends in the fault
`unlike`.

What was begun ahead and is not wanted is thrown away. Nothing that is seen, played or recorded depends on what was begun when.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar

Wanted = tuple[Mapping[str, Any], int, int]
"""(task, environment's seed, attempts)."""


class Shown(Protocol):
    """What came of a reset."""

    @property
    def observation(self) -> object:
        """None where the world did not begin."""
        ...


class Startable(Protocol):
    """An episode that has not been played yet (`pool.Episode`)."""

    def begin(self) -> None: ...
    def reset(self) -> Future[Any]: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=Startable)
R = TypeVar("R", bound=Shown)


class Spent:
    """Seconds that whoever plays has waited, by what for."""

    def __init__(self) -> None:
        self.seconds = {"environment": 0.0, "sampling": 0.0}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - began


class Ahead(Generic[E, R]):
    """The episodes of a pool that have begun and wait for somebody to play them. Used by one thread at a time."""

    def __init__(self, make: Callable[..., E], *, alike: bool):
        """`make(task, seed, leads=)` a new episode (`EnvPool.episode`). `alike`: attempts with the same task and seed begin alike; where
        they need not, nothing begins ahead."""
        self.alike = alike
        self.most = 0
        """Most episodes that were played at once."""
        self.drawn_once = self.thrown_away = 0
        """Attempts that were shown another's first screen; episodes that were begun or were to begin, and nobody wanted."""
        self._make = make
        self._missed = False
        """Whether something else was taken than is held."""
        self.worlds = 2**31
        """Worlds that a group needs, as the last ones did: so many of its attempts begin ahead."""
        self._held: dict[str, list[E]] = {}

    def take(self, task: Mapping[str, Any], seed: int, attempts: int) -> list[E]:
        """Episodes of a task and seed: those that are held, and new ones."""
        held = self._held.pop(_name(task, seed), [])
        self._missed |= not held
        self._drop(held[attempts:])
        return held[:attempts] + self._new(task, seed, range(len(held), attempts))

    def foresee(self, wanted: Sequence[Wanted]) -> None:
        """Let these begin while nobody waits, the first attempt at each before the second at any. What is held beside them goes."""
        if not self.alike:
            return
        before, self._held = self._held, {}
        for task, seed, attempts in wanted:
            held = before.pop(_name(task, seed), [])
            self._held.setdefault(_name(task, seed), []).extend(held or self._new(task, seed, range(attempts)))
        self._drop([one for held in before.values() for one in held])
        self._begin([held[: self.worlds] for held in self._held.values()])

    def learn(self, groups: Sequence[Sequence[E]]) -> None:
        """Take in which world each attempt of each group ended in."""
        if groups:
            self.worlds = -(-sum(len({id(one) for one in group}) for group in groups) // len(groups))

    def firsts(self, groups: Sequence[Sequence[E]]) -> list[list[tuple[R, E]]]:
        """What each attempt of each group is shown first, and by whose world. Attempts of a group have the same task and seed."""
        self.most = max(self.most, sum(map(len, groups)))
        if self._missed:  # the guess was wrong, and what was begun for it would stand beside what is played
            self._drop([one for held in self._held.values() for one in held])
            self._held, self._missed = {}, False
        if not self.alike:
            asked = [[episode.reset() for episode in group] for group in groups]
            return [[(one.result(), episode) for one, episode in zip(*pair, strict=True)] for pair in zip(asked, groups, strict=True)]
        leading = [group[0].reset() for group in groups if group]
        self._begin([group[1 : self.worlds] for group in groups])
        shown = [one.result() for one in leading]
        return [self._of_group(group, shown.pop(0)) if group else [] for group in groups]

    def _of_group(self, group: Sequence[E], first: R) -> list[tuple[R, E]]:
        """The first attempt whose world begins shows its screen to those behind it."""
        replies = [first]
        while replies[-1].observation is None and len(replies) < len(group):
            replies.append(group[len(replies)].reset().result())
        own = list(zip(replies, group, strict=False))
        others = len(group) - len(own)
        self.drawn_once += others
        return own + own[-1:] * others

    def _begin(self, groups: Sequence[Sequence[E]]) -> None:
        """While nobody waits, the first of every group before the second of any."""
        for of_all in zip_longest(*groups):
            for episode in of_all:
                if episode is not None:
                    episode.begin()

    def _new(self, task: Mapping[str, Any], seed: int, attempts: range) -> list[E]:
        return [self._make(task, seed, leads=k == 0) for k in attempts]

    def _drop(self, episodes: Sequence[E]) -> None:
        self.thrown_away += len(episodes)
        for episode in episodes:
            episode.close()


def _name(task: Mapping[str, Any], seed: int) -> str:
    return json.dumps([task, seed], sort_keys=True)
