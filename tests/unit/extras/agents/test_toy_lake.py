"""Frozen lakes: moves by hand, shortest ways by another search, layouts that are held out, rows that a stage samples under."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.tiny import Tiny
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.check import check
from vlmrl.extras.agents.demonstrations import episode_rows
from vlmrl.extras.agents.find import default_tasks, open_pool
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.lake import CELL, FRAMES, GOAL, HOLE, MOVES, PLAYER, SHORE, Lake, draw_lake, ice, walk
from vlmrl.extras.agents.play import play_many
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.toy_lake import FEWEST, HOLES, LOOKING, SIZE, items, thought
from vlmrl.extras.agents.worlds.toy_lake import INVALID, ToyLake, toy_lake

LAKE = Lake(size=4, goal=(3, 2), holes=((1, 0), (0, 2), (2, 2)), player=(0, 1))
"""
. O . .
P . . .
O . O G
. . . .
"""
seeds = st.integers(0, 2**40)


def lake_of(seed: int, held_out: bool = False) -> Lake:
    return draw_lake((seed,), size=SIZE, holes=HOLES, fewest=FEWEST, held_out=held_out)


def at(player: tuple[int, int]) -> Lake:
    return dataclasses.replace(LAKE, player=player)


def test_moves_by_hand() -> None:
    assert LAKE.moved("left") == LAKE  # the edge
    assert (LAKE.moved("down").player, LAKE.moved("down").fallen) == ((0, 2), True)
    assert (LAKE.moved("right").player, LAKE.moved("right").fallen) == ((1, 1), False)
    assert (LAKE.distance, LAKE.closer(), LAKE.danger()) == (4, ["down", "right"], ["down"])
    assert LAKE.solution() == ["right", "right", "right", "down"]
    assert (at((3, 1)).moved("down").solved, LAKE.solved) == (True, False)
    assert dataclasses.replace(LAKE, holes=((3, 1), (2, 2), (3, 3))).solution() is None


@given(seeds)
def test_a_way_is_shortest(seed: int) -> None:
    """Against distances by rounds from the goal."""
    lake = lake_of(seed)
    cells = [cell for cell in product(range(SIZE), repeat=2) if cell not in lake.holes]
    far = {lake.goal: 0}
    for n in range(len(cells)):
        far |= {a: n + 1 for a in cells if a not in far and any(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for b in far)}
    way = lake.solution()
    assert way is not None
    assert len(way) == far[lake.player] >= FEWEST
    for move in way:
        lake = lake.moved(move)
        assert not lake.fallen
    assert lake.solved


@given(seeds, st.booleans())
def test_who_looks_never_falls(seed: int, looks: bool) -> None:
    steps = list(walk(lake_of(seed), (seed,), looks=looks))
    for (before, move), after in zip(steps, [lake for lake, _ in steps[1:]], strict=False):
        assert before.moved(move) == after
    for lake, move in steps:
        assert move in lake.closer() or (looks and set(lake.closer()) <= set(lake.danger()))
        assert not (looks and lake.moved(move).fallen)


@given(seeds)
def test_held_out_layouts_are_none_that_is_practised_on(seed: int) -> None:
    practised, held_out = lake_of(seed), lake_of(seed, held_out=True)
    assert (practised.held_out, held_out.held_out) == (False, True)
    # where the player is does not matter, nor the order of holes
    assert dataclasses.replace(held_out, player=held_out.goal, holes=held_out.holes[::-1]).held_out


def test_a_fifth_of_the_layouts_is_held_out() -> None:
    every = product(product(range(4), repeat=2), repeat=3)
    layouts = [(goal, first, second) for goal, first, second in every if first < second and goal not in (first, second)]
    held_out = [dataclasses.replace(LAKE, goal=goal, holes=tuple(holes)).held_out for goal, *holes in layouts]
    assert abs(sum(held_out) / len(layouts) - 0.2) < 3 * (0.2 * 0.8 / len(layouts)) ** 0.5


def test_a_lake_as_pixels() -> None:
    """From (0, 1): two columns to the left of the lake are shore, and row 0 is above the middle."""
    picture, hidden = LAKE.paint(), LAKE.paint(holes=False)
    assert picture.shape == (7 * CELL, 7 * CELL, 3)

    def middle(of: np.ndarray, right: int, down: int) -> tuple[int, ...]:
        """Of the cell so far from the player's."""
        return tuple(of[CELL * (3 + down) + CELL // 2, CELL * (3 + right) + CELL // 2].tolist())

    places = ((0, 0), (3, 1), (1, -1), (0, 1), (-1, 0), (0, -2), (0, 3), (3, 2))
    seen = [PLAYER, GOAL, HOLE, HOLE, SHORE, SHORE, SHORE, ice(1, 5 / 6)]
    assert [middle(picture, *place) for place in places] == seen
    assert [middle(hidden, *place) for place in places] == [PLAYER, GOAL, ice(4 / 6, 2 / 6), ice(3 / 6, 4 / 6), *seen[4:]]
    elsewhere = dataclasses.replace(LAKE, holes=((3, 3), (0, 0), (1, 1)))
    assert np.array_equal(hidden, elsewhere.paint(holes=False)), "hidden holes leave no trace"
    frames = [picture[CELL * (3 + down) + 1, CELL * (3 + right) + 1].tolist() for right, down in MOVES.values()]
    assert frames == [list(color) for color in FRAMES.values()]
    assert picture[3 * CELL, 5 * CELL].tolist() == list(ice(5 / 6, 3 / 6)), "a cell says where it is around what stands on it too"


def test_the_world_keeps_what_worlds_must_keep() -> None:
    with open_pool("toy_lake", {}, plugins=(), settings=PoolSettings(workers=2)) as pool:
        done = check(pool, default_tasks("toy_lake"), episodes=8, turns=20)
    assert done.ok, done.lines()
    assert all(one.looked for one in done.found.values())


def test_how_episodes_go_on_and_end() -> None:
    world = ToyLake(4, 6, 3, True)
    world.reset({}, 0)
    world._lake = LAKE
    idle = world.step("jump")
    assert (idle.outcome, idle.reward) == ("invalid", INVALID)
    assert idle.observation is not None
    fallen = world.step("down")
    assert (fallen.observation, fallen.outcome, fallen.reward) == (None, "failure", 0.0)
    with pytest.raises(RuntimeError, match="outside an episode"):
        world.step("up")
    with pytest.raises(ValueError, match="layouts are 'both'"):
        world.reset({"layouts": "both"}, 0)
    with pytest.raises(ConfigError, match="at least 3 cells"):
        toy_lake(size=2)


def test_demonstrations_are_the_rows_that_a_stage_samples_under(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> None:
    """Text and pixels of a row are those of the played turn whose lake it shows."""
    out = tmp_path_factory.mktemp("played")
    with open_pool("toy_lake", {}, plugins=(), settings=PoolSettings(workers=1)) as pool:
        ((one,),) = play_many(pool, default_tasks("toy_lake")[:1], out, episodes=1, attempts=1, agent="solve", turns=20, seed=3)
    played = episode_rows(one, History(screens=1, actions=False), "think")
    encoder = dataclasses.replace(tiny.encoder, data_root=out)
    lake = lake_of(one.seed)
    own = items(0, "pretrain", 0)[0].row
    for row in played:
        sample = parse_row(row, source="x", media_root=".")
        found = encoder.encode(sample, "think")
        again = encoder.encode(parse_row({**own, "images": row["images"], "image": None}, source="x", media_root="."), "think")
        assert again.ids == found.ids
        assert np.array_equal(lake.paint(), np.asarray(Image.open(out / row["images"][0]["path"])))
        assert row["answer"] == (lake.solution() or [""])[0]
        lake = lake.moved(row["answer"])
    assert lake.solved


def test_rows_of_the_splits() -> None:
    assert thought(LAKE, looks=False) == "goal right 3 down 1"
    assert thought(LAKE, looks=True) == "goal right 3 down 1, holes down"
    assert thought(at((3, 0)), looks=True) == "goal down 2, holes none"
    for index in range(2 * LOOKING):
        start = draw_lake((0, "pretrain", index), size=SIZE, holes=HOLES, fewest=FEWEST)
        looks = index % LOOKING == 0
        ways = list(walk(start, (0, "pretrain", index), looks=looks))
        rows = [item.row for item in items(0, "pretrain", index)]
        assert [(row["answer"], row["thought"]) for row in rows] == [(move, thought(lake, looks=looks)) for lake, move in ways]
        assert not start.held_out
    tests = [items(0, "test", index)[0].row for index in range(6)]
    assert [row["meta"]["environment"]["layouts"] for row in tests] == ["practised", "held_out"] * 3
    assert {items(0, "train", index)[0].row["meta"]["category"] for index in range(6)} == {"practised"}
    assert set(MOVES) >= {row["answer"] for row in tests}
