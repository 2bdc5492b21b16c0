"""Sokoban as pixels: push the box onto the goal. Every board can be solved, and the world knows how.

vlmrl tools env check sokoban --plugin examples.sokoban
vlmrl tools env play sokoban /tmp/demonstrations --plugin examples.sokoban --agent solve --episodes 200 --rows --history 1
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageDraw

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.protocols import environment
from vlmrl.rng import key

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
CELL = 28
"""Pixels of a side of a cell."""
Place = tuple[int, int]
State = tuple[Place, Place]
"""(player, box)"""


class Sokoban:
    identity = {"environment": "sokoban", "version": "1"}  # noqa: RUF012 (as the protocol has it)

    def __init__(self, size: int, walls: int, fewest: int):
        self.size, self.walls, self.fewest = size, walls, fewest
        self.way: list[str] = []

    def reset(self, task: dict[str, Any], seed: int) -> Observation:
        for tried in range(10_000):
            cells = self._drawn(seed, tried)
            self.goal, self.start, self.blocked = cells[0], (cells[1], cells[2]), frozenset(cells[3:])
            way = self._solution(self.start)
            if way is not None and len(way) >= self.fewest:
                self.state, self.best, self.way = self.start, len(way), way
                return self._look()
        raise ValueError(f"sokoban: no board of {self.size} x {self.size} with {self.walls} walls takes {self.fewest} moves")

    def step(self, action: str) -> Transition:
        moved = self._moved(self.state, action)
        if moved is None:
            return Transition(observation=self._look(), outcome="invalid")
        self.way = self.way[1:] if self.way[:1] == [action] else []
        self.state = moved
        if moved[1] == self.goal:
            return Transition(observation=None, reward=1.0, outcome="success")
        pushed = sum(abs(a - b) for a, b in zip(moved[1], self.goal, strict=True))
        return Transition(observation=self._look(), info={"box_to_goal": pushed})

    def close(self) -> None:
        pass

    def propose(self, n: int) -> str:
        return tuple(MOVES)[n % 4]

    def solve(self) -> str | None:
        if not self.way:
            self.way = self._solution(self.state) or []
        return self.way[0] if self.way else None

    def optimum(self) -> Optimum:
        return Optimum(reward=1.0, turns=self.best)

    def _drawn(self, seed: int, tried: int) -> list[Place]:
        """Different cells: goal, player, box, walls."""
        every = [(x, y) for y in range(self.size) for x in range(self.size)]
        return [every.pop(key(seed, "sokoban", tried, n) % len(every)) for n in range(3 + self.walls)]

    def _free(self, place: Place) -> bool:
        return 0 <= place[0] < self.size and 0 <= place[1] < self.size and place not in self.blocked

    def _moved(self, state: State, action: str) -> State | None:
        """Where a move leads; the same where something is in the way, None where it is no move."""
        if action not in MOVES:
            return None
        (x, y), (dx, dy), box = state[0], MOVES[action], state[1]
        to, behind = (x + dx, y + dy), (x + 2 * dx, y + 2 * dy)
        if not self._free(to) or (to == box and not self._free(behind)):
            return state
        return to, behind if to == box else box

    def _solution(self, start: State) -> list[str] | None:
        """A shortest way, by breadth-first search; None where there is none."""
        before: dict[State, tuple[State, str]] = {}
        waiting, seen = deque([start]), {start}
        while waiting:
            state = waiting.popleft()
            if state[1] == self.goal:
                return [move for move in self._back(before, state)][::-1]
            for move in MOVES:
                there = self._moved(state, move)
                if there is not None and there not in seen:
                    seen.add(there)
                    before[there] = state, move
                    waiting.append(there)
        return None

    def _back(self, before: dict[State, tuple[State, str]], state: State) -> Iterator[str]:
        while state in before:
            state, move = before[state]
            yield move

    def _look(self) -> Observation:
        side = CELL * (self.size + 2)
        image = Image.new("RGB", (side, side), "dimgray")
        pen = ImageDraw.Draw(image)

        def cell(place: Place, colour: str, margin: int) -> None:
            x, y = CELL * (place[0] + 1), CELL * (place[1] + 1)
            pen.rectangle((x + margin, y + margin, x + CELL - 1 - margin, y + CELL - 1 - margin), fill=colour)

        for place in ((x, y) for y in range(self.size) for x in range(self.size)):
            cell(place, "dimgray" if place in self.blocked else "ivory", 0)
        cell(self.goal, "seagreen", 8)
        cell(self.state[1], "sienna", 4)
        x, y = (CELL * (one + 1) for one in self.state[0])
        pen.ellipse((x + 5, y + 5, x + CELL - 6, y + CELL - 6), fill="royalblue")
        picture = io.BytesIO()
        image.save(picture, "PNG")
        return Observation(text="Push the brown box onto the green goal: up, down, left or right.", screens=(picture.getvalue(),))


@environment("sokoban", asks="exact_text")
def sokoban(*, size: int = 5, walls: int = 3, fewest: int = 3) -> Sokoban:
    """Push the one box of a small board onto its goal.

    Args:
        size: cells of a side, without the wall around.
        walls: cells that are walls.
        fewest: least moves of a shortest solution.

    Raises:
        ConfigError: a board that is too small.
    """
    if size < 3 or not 0 <= walls <= size * size - 3:
        raise ConfigError(f"environment 'sokoban': size {size} and walls {walls}; at least 3 cells a side, and three of them free")
    return Sokoban(size, walls, fewest)
