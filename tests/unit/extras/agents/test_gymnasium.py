"""worlds.gymnasium: worlds that gymnasium registers keep what environments must keep; names of actions, outcomes, what is shown."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from tests.unit.extras.agents.test_env_check import look
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.find import missing_for
from vlmrl.extras.agents.worlds import gymnasium as bridge

pytest.importorskip("gymnasium", reason="needs gymnasium, which the extra dev has")
needs_pygame = pytest.mark.skipif(importlib.util.find_spec("pygame") is None, reason="needs pygame; pip install 'vlmrl[gymnasium]'")
needs_minigrid = pytest.mark.skipif(importlib.util.find_spec("minigrid") is None, reason="needs minigrid; pip install 'vlmrl[gymnasium]'")
ROOMS = {"env_id": "rooms/Corridor-v0", "module": "tests.support.gym_rooms"}


def corridor(at: int = 0, **more: Any) -> bridge.Gymnasium:
    made = bridge.gymnasium(**{**ROOMS, **more})
    made.reset({"id": "a", "options": {"at": at}}, 3)
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(ROOMS, id="corridor"),
        pytest.param({"env_id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"]}, id="lake", marks=needs_pygame),
        pytest.param({"env_id": "MiniGrid-Empty-5x5-v0", "module": "minigrid"}, id="minigrid", marks=needs_minigrid),
        pytest.param({"env_id": "BabyAI-GoToLocal-v0", "module": "minigrid", "observe": "both"}, id="babyai", marks=needs_minigrid),
    ],
)
def test_worlds_keep_everything(arguments: dict[str, Any]) -> None:
    done = look("gymnasium", retries=1, episodes=3, **arguments)
    assert done.ok, done.lines()
    assert done.found["determinism"].looked == done.found["invalid"].looked == 3


def test_the_end_is_a_success_a_failure_or_a_cut() -> None:
    assert corridor(2).step("right").outcome == "success"
    assert corridor(2, success_above=1.0).step("right").outcome == "failure"
    said = corridor(2, kwargs={"says": True}).step("right")
    assert (said.outcome, said.reward, said.info) == ("failure", 1.0, {"left_to_go": 0.0, "success": 0.0}), "the world has the word"
    world = corridor()
    came = [world.step("left") for _ in range(5)]
    assert [one.outcome for one in came] == ["", "", "", "", "cut"]
    assert [one.done for one in came] == [False] * 4 + [True]
    with pytest.raises(RuntimeError, match="after the end"):
        world.step("left")


def test_what_is_shown() -> None:
    seen = corridor(1, text="Move.").step("up").observation
    assert seen is not None
    assert seen.text == "Move.\ngo to the right end\nActions: left, right"
    both = corridor(1, observe="both").step("up").observation
    assert both is not None
    assert both.text == "go to the right end\nat: 1\nActions: left, right"
    assert both.screens == seen.screens
    told = corridor(1, observe="text").step("up").observation
    assert told is not None
    assert (told.text, told.screens) == (both.text, ())


def test_actions_are_names_and_others_change_nothing() -> None:
    world = corridor(0)
    assert [world.step(text).outcome for text in ("", "RIGHT!", "0", "right left")] == ["invalid"] * 4
    assert world.step(" Right\n").info == {"left_to_go": 2.0}
    assert [world.propose(n) for n in range(3)] == ["left", "right", "left"]
    numbered = corridor(0, kwargs={"named": False, "start": 3})
    assert [numbered.propose(n) for n in range(2)] == ["3", "4"]
    assert numbered.step("4").info == {"left_to_go": 2.0}
    renamed = corridor(0, actions=["west", "east"])
    assert renamed.step("east").info == {"left_to_go": 2.0}


def test_a_task_may_state_its_seed() -> None:
    world = bridge.gymnasium(**ROOMS)
    stated = {world.reset({"id": "a", "seed": 7}, seed).screens for seed in range(8)}
    drawn = {world.reset({"id": "a"}, seed).screens for seed in range(8)}
    assert len(stated) == 1
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"env_id": "CartPole-v1", "observe": "text", "actions": ["left"]}, "the world has 2"),
        ({"env_id": "CartPole-v1", "observe": "text", "actions": ["left", "Left "]}, "each with a name of its own"),
        ({"env_id": "MountainCarContinuous-v0", "observe": "text"}, "only Discrete ones can be named"),
    ],
)
def test_actions_that_cannot_be_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bridge.gymnasium(**arguments)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_for("gymnasium") is None
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setattr(bridge.importlib.util, "find_spec", lambda name: None)
    assert missing_for("gymnasium") == "the package gymnasium; install: pip install 'vlmrl[gymnasium]'"
