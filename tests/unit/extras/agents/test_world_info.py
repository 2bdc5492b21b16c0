"""What a world says of a step beside the reward, and limits of its own: from the world to records, metrics and the page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from typing import cast

import numpy as np
import pytest

from tests.unit.extras.agents.test_env_check import look, wrong
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.play import play_many
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.protocol import MOST, info_problem, plain_info
from vlmrl.extras.agents.replay_page import write_played
from vlmrl.extras.agents.score import score
from vlmrl.extras.agents.trajectory import Trajectory, trajectory_from_json, trajectory_to_json
from vlmrl.extras.agents.turns import EpisodeCollector, FaultWatch, notes_of

ODD = ("tests.support.odd_worlds",)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Four attempts in a world that says how many answers were right, and ends by a limit of its own."""
    out = tmp_path_factory.mktemp("played")
    with open_pool("odd", {"how": "telling"}, plugins=ODD, settings=PoolSettings(workers=1)) as pool:
        (played,) = play_many(pool, [{"id": "a"}], out, episodes=1, attempts=4, agent="random", turns=5, seed=0)
    assert "said go" in write_played([played], out).read_text()
    return played


def test_what_a_world_says_is_recorded_and_comes_back(group: list[Trajectory]) -> None:
    for one in group:
        assert all(set(turn.info) == {"right", "said"} and turn.info["said"] == turn.action for turn in one.turns)
        assert one.outcome == "cut"
        assert one.told == {"right": one.turns[-1].info["right"]}
        assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(one)))) == one
        assert dataclasses.replace(one, turns=(), fault="timeout").told == {}


def test_a_turn_without_it_is_recorded_as_before(group: list[Trajectory]) -> None:
    silent = dataclasses.replace(group[0], turns=tuple(dataclasses.replace(turn, info={}) for turn in group[0].turns))
    record = trajectory_to_json(silent)
    assert all("info" not in turn for turn in record["turns"])
    assert trajectory_from_json(record) == silent


def test_the_last_numbers_are_measured(group: list[Trajectory]) -> None:
    collector = cast(EpisodeCollector, object.__new__(EpisodeCollector))
    for name, value in (("watch", FaultWatch(1.0)), ("played", {})):
        object.__setattr__(collector, name, value)
    lost = dataclasses.replace(group[0], turns=(), fault="timeout")
    notes = notes_of([*group, lost]) + notes_of(group[:1])
    found = collector.measured(Counter(notes), step=0)
    numbers = [float(one.told["right"]) for one in [*group, group[0]]]
    assert found["environment/info/right"] == pytest.approx(sum(numbers) / 5)
    assert found["environment/limit/cut"] == 5
    assert not any(name.startswith("environment/told") for name in found)
    assert score([group]).told["right"] == pytest.approx(sum(numbers[:4]) / 4)
    assert any(line.startswith("last said by the world (mean): right ") for line in score([group]).lines())


def test_it_is_part_of_what_is_the_same_when_an_episode_is_made_again() -> None:
    assert wrong(look("odd", plugins=ODD, retries=1, how="telling")) == set()
    muttering = look("odd", plugins=ODD, retries=1, how="muttering")
    assert wrong(muttering) == {"determinism", "recovery"}
    assert "info {'pid': " in muttering.found["determinism"].wrong[0]


def test_what_is_no_number_and_no_short_text_is_a_fault() -> None:
    with open_pool("odd", {"how": "telling lists"}, plugins=ODD, settings=PoolSettings(workers=1, retries=0)) as pool:
        episode = pool.episode({"id": "a"}, 1)
        episode.reset().result()
        came = episode.step("go").result()
    assert came.fault == "protocol"
    assert "'a' is [1]" in came.detail


@pytest.mark.parametrize("info", [{"a": math.nan}, {"": 1.0}, {"a": "x" * 201}, {3: 1.0}, [1], {f"{n}": 1.0 for n in range(MOST + 1)}])
def test_what_an_info_may_not_be(info: object) -> None:
    assert info_problem(info) is not None


def test_of_a_foreign_world_the_plain_part_is_taken() -> None:
    told = {
        "won": True,
        "at": np.float32(0.5),
        "n": np.int64(3),
        "grid": np.zeros(2),
        "why": "no",
        "all": "x" * 300,
        "list": [1],
        "bad": math.inf,
    }
    assert plain_info({**told, "metrics": {"turn": {"valid": False}}}) == {
        "won": 1.0,
        "at": 0.5,
        "n": 3.0,
        "why": "no",
        "metrics/turn/valid": 0.0,
    }
    assert len(plain_info({str(n): n for n in range(2 * MOST)})) == MOST
