"""agents.worlds.toy_desk: goals, wrong turns, states that come back, the declared optimum, injected faults."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from vlmrl.extras.agents.protocol import Environment, Explorable, Solvable
from vlmrl.extras.agents.worlds.toy_desk import WORDS, make_goal, middle, quarter_of, toy_desk
from vlmrl.metrics.gui import parse_action


def click(quarter: int) -> str:
    return json.dumps({"action": "click", "coordinate": middle(quarter)})


def with_a_click(length: int = 2) -> tuple[int, int]:
    """A seed whose first part is a press or an open, and a grey quarter of its screen."""
    seed = next(s for s in range(100) if make_goal(s, length)[0].kind in ("press", "open"))
    return seed, make_goal(seed, length)[0].grey[0][0]


def test_toy_desk_is_solved_in_as_many_turns_as_parts():
    desk = toy_desk()
    assert isinstance(desk, Explorable)
    assert isinstance(desk, Solvable)
    as_environment: Environment = desk
    for seed in range(20):
        as_environment.reset({}, seed)
        rewards = []
        while True:
            came = desk.step(desk.solve())
            rewards.append(came.reward)
            if came.done:
                break
        assert rewards == [0.0] * (desk.optimum().turns - 1) + [1.0]
        assert came.outcome == "success"
        assert 2 <= desk.optimum().turns <= 4


def test_a_wrong_click_leads_to_another_screen_and_back_to_the_same_state():
    seed, grey = with_a_click()
    desk = toy_desk()
    start = desk.reset({"length": 2}, seed)
    lost = desk.step(click(grey)).observation
    assert lost is not None
    assert (start.state, lost.state) == ("0", "0 lost")
    assert lost.screens != start.screens
    assert desk.step(click(3)).observation == lost  # not the button
    assert desk.step(click(0)).observation == start
    assert desk.step(json.dumps({"action": "scroll", "direction": "sideways"})).observation == start


def test_what_cannot_be_read_is_an_outcome_and_the_episode_goes_on():
    desk = toy_desk()
    start = desk.reset({}, 5)
    came = desk.step("I click the red button")
    assert (came.outcome, came.reward, came.observation) == ("invalid", 0.0, start)


def test_the_goal_is_drawn_from_the_seed_and_its_element_is_where_it_is_said():
    assert make_goal(3, None) == make_goal(3, None)
    assert len({make_goal(seed, 4) for seed in range(30)}) == 30
    for seed in range(40):
        part = make_goal(seed, 2)[0]
        if part.kind not in ("press", "open"):
            continue
        pixels = np.asarray(Image.open(io.BytesIO(toy_desk().reset({"length": 2}, seed).screens[0])))
        x, y = (c // 10 for c in middle(part.quarter))
        assert pixels[y, x].max() - pixels[y, x].min() > 100, "what is asked for is coloured"
        action = parse_action(part.action())
        assert action is not None
        assert part.right(action)
        assert all(quarter != part.quarter for quarter, _, _ in part.grey)


def test_points_lie_in_quarters():
    assert [quarter_of((x, y)) for y in (0, 500) for x in (499.9, 500)] == [0, 1, 2, 3]
    assert [quarter_of((middle(q)[0], middle(q)[1])) for q in range(4)] == [0, 1, 2, 3]


def test_typing_another_word_changes_nothing():
    seed = next(s for s in range(100) if make_goal(s, 2)[0].kind == "type")
    desk = toy_desk()
    start = desk.reset({"length": 2}, seed)
    wrong = next(word for word in WORDS if word != make_goal(seed, 2)[0].what)
    assert desk.step(json.dumps({"action": "input_text", "text": wrong})).observation == start
    went = desk.step(desk.solve()).observation
    assert went is not None
    assert went.state == "1"


def test_injected_faults_come_in_the_first_attempts_only():
    desk = toy_desk(crash_share=1.0, fault="raise", fault_attempts=2)

    def run(attempt: int) -> float:
        desk.reset({"length": 2, "attempt": attempt}, 4)
        return desk.step(desk.solve()).reward + desk.step(desk.solve()).reward

    for attempt in (0, 1):
        with pytest.raises(RuntimeError, match="injected"):
            run(attempt)
    assert run(2) == 1.0


@pytest.mark.parametrize("length", [1, 5, True, "2"])
def test_a_wrong_length_is_refused(length):
    with pytest.raises(ValueError, match="must be 2, 3 or 4"):
        toy_desk().reset({"length": length}, 0)


def test_a_wrong_share_is_refused():
    with pytest.raises(ValueError, match="crash_share"):
        toy_desk(crash_share=1.5)
