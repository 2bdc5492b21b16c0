"""Frozen lakes as pixels: a square of cells, a goal, holes to fall into, and whoever walks there.

The rules are those of gymnasium's FrozenLake without slipping, with start and goal anywhere. A lake's layout is where the goal and the
holes are: a fifth of all layouts are held out, so that lakes exist whose layout nobody has practised on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from vlmrl.rng import key

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
CELL = 28
"""Pixels of a side of a cell: one visual token."""
HELD_OUT = 5
"""One of so many layouts is held out."""
TRIES = 10_000
HOLE, GOAL, PLAYER, SHORE = (70, 70, 76), (20, 110, 60), (40, 60, 200), (150, 110, 70)
"""Colours (RGB)."""
FRAMES = {"up": (250, 240, 40), "down": (240, 40, 240), "left": (30, 220, 250), "right": (250, 50, 50)}
"""Of the cells that a move leads to."""
Place = tuple[int, int]
"""Column and row, from the upper left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lake:
    """Where everything is."""

    size: int
    """Cells of a side."""
    goal: Place
    holes: tuple[Place, ...]
    player: Place

    @property
    def solved(self) -> bool:
        return self.player == self.goal

    @property
    def fallen(self) -> bool:
        return self.player in self.holes

    @property
    def distance(self) -> int:
        """Cells to the goal, holes or none."""
        return sum(abs(a - b) for a, b in zip(self.player, self.goal, strict=True))

    @property
    def held_out(self) -> bool:
        """Whether nobody practises on lakes with this goal and these holes."""
        cells = (place for one in (self.goal, *sorted(self.holes)) for place in one)
        return key(self.size, "lake-layout", *cells) % HELD_OUT == 0

    def moved(self, move: str) -> Lake:
        """The lake after one of MOVES: itself at an edge."""
        to = tuple(a + b for a, b in zip(self.player, MOVES[move], strict=True))
        return replace(self, player=to) if min(to) >= 0 and max(to) < self.size else self

    def closer(self) -> list[str]:
        """The moves that come closer to the goal, over holes too."""
        return [move for move in MOVES if self.moved(move).distance < self.distance]

    def danger(self) -> list[str]:
        """The moves that lead into a hole."""
        return [move for move in MOVES if self.moved(move).fallen]

    def solution(self) -> list[str] | None:
        """A shortest way to the goal around the holes, by breadth-first search in the order of MOVES; None where there is none."""
        came: dict[Lake, tuple[Lake, str] | None] = {self: None}
        waiting: deque[Lake] = deque([self])
        while waiting:
            lake = waiting.popleft()
            if lake.solved:
                way: list[str] = []
                while (step := came[lake]) is not None:
                    lake, move = step
                    way.append(move)
                return way[::-1]
            for move in MOVES:
                after = lake.moved(move)
                if after not in came and not after.fallen:
                    came[after] = lake, move
                    waiting.append(after)
        return None

    def paint(self, *, holes: bool = True) -> np.ndarray:
        """uint8 RGB [CELL * n, CELL * n, 3] with n = 2 * size - 1: the lake with the player in the middle, the shore around it, the goal's
        square, and those of holes unless they are hidden.

        The ice is redder to the right of the picture and bluer to its bottom, and cells beside the player have a frame in the colour of
        their move, so that a cell by itself says where it is: a tiny model learns that from few pictures, and the place of a visual token
        among others only from many.
        """
        reach, shape = self.size - 1, ((2 * self.size - 1) * CELL, (2 * self.size - 1) * CELL, 3)
        picture = np.empty(shape, dtype=np.uint8)
        y, x = np.mgrid[0:CELL, 0:CELL] - (CELL - 1) / 2
        for right, down in product(range(2 * reach + 1), repeat=2):
            cell = picture[CELL * down : CELL * (down + 1), CELL * right : CELL * (right + 1)]
            place = self.player[0] + right - reach, self.player[1] + down - reach
            inside = min(place) >= 0 and max(place) < self.size
            cell[:] = ice(right / (2 * reach), down / (2 * reach)) if inside else SHORE
            if place == self.goal or (holes and place in self.holes):
                cell[(abs(x) <= 10) & (abs(y) <= 10)] = GOAL if place == self.goal else HOLE
        for move, (right, down) in MOVES.items():
            cell = picture[CELL * (reach + down) : CELL * (reach + down + 1), CELL * (reach + right) : CELL * (reach + right + 1)]
            cell[np.maximum(abs(x), abs(y)) >= 11] = FRAMES[move]
        picture[CELL * reach : CELL * (reach + 1), CELL * reach : CELL * (reach + 1)][x**2 + y**2 <= 64] = PLAYER
        return picture


def ice(right: float, down: float) -> tuple[int, int, int]:
    """Its colour (RGB), at these shares of a picture."""
    return 75 + round(180 * right), 225, 75 + round(180 * down)


def draw_lake(names: Sequence[int | str], *, size: int, holes: int, fewest: int, held_out: bool = False) -> Lake:
    """The lake at these coordinates that can be crossed, in `fewest` moves or more, with a layout that is held out or not.

    Raises:
        ValueError: there is none among many draws.
    """
    for tried in range(TRIES):
        cells = [(x, y) for y in range(size) for x in range(size)]
        goal, player, *rest = (cells.pop(key(0, "lake", *names, tried, n) % len(cells)) for n in range(2 + holes))
        lake = Lake(size=size, goal=goal, holes=tuple(rest), player=player)
        way = lake.solution() if lake.held_out == held_out else None
        if way is not None and len(way) >= fewest:
            return lake
    raise ValueError(f"lake: none of {size} x {size} with {holes} holes takes {fewest} moves")


def walk(lake: Lake, names: Sequence[int | str], *, looks: bool) -> Iterator[tuple[Lake, str]]:
    """(lake, move) of somebody who heads for the goal: one of `closer` at random. Who `looks` steps into no hole, and somewhere else where
    every closer move leads into one."""
    for n in range(3 * lake.size):
        if lake.solved or lake.fallen:
            return
        dangers = lake.danger() if looks else []
        moves = [move for move in lake.closer() if move not in dangers]
        moves = moves or [move for move in MOVES if move not in dangers and lake.moved(move) != lake]
        move = moves[key(0, "lake-walk", *names, n) % len(moves)]
        yield lake, move
        lake = lake.moved(move)
