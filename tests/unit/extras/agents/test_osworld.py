"""agents.worlds.osworld: the bridge and its driver against a stand-in of OSWorld's package, made from the source of `desktop-env` 1.0.2."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsers import comes_true
from vlmrl.evals.ask.tasks import Task, check_task
from vlmrl.extras.agents.find import missing_for, open_pool
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.protocol import Environment
from vlmrl.extras.agents.worlds.osworld import VARIABLE, osworld, pressed, sent_as, typed
from vlmrl.metrics.gui import Action, parse_action

SUPPORT = Path(__file__).parents[3] / "support"
QUICK = {"settle": 0.0, "pause": 0.0}
OPENED = ["open", "docker", "init_state", "pyautogui", [1920, 1080], True, False]


def task(func: str = "check", wrong: str = "") -> dict[str, Any]:
    example = {"id": "x", "instruction": "Close it.", "config": [{"type": "launch"}], "evaluator": {"func": func, "options": wrong}}
    return {"id": "a", "example": example}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the desktop was asked for, a line each."""
    monkeypatch.setenv(VARIABLE, sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    monkeypatch.setenv("DESKTOP_LOG", str(tmp_path / "asked"))
    return tmp_path / "asked"


def lines(asked: Path) -> list[list[Any]]:
    return [json.loads(line) for line in asked.read_text().splitlines()]


def test_an_episode_is_what_the_desktop_is_asked_for(asked: Path) -> None:
    world = osworld(**QUICK)
    as_environment: Environment = world
    first = as_environment.reset(task(), 7)
    assert first.text.startswith("Task: Close it.\nAnswer with one action as JSON")
    moved = world.step('{"action": "click", "coordinate": [500, 500]}')
    assert (moved.observation, moved.reward, moved.outcome) == (first, 0.0, "")
    assert world.step("click it").outcome == "invalid"
    assert world.step('{"action": "wait"}').observation == first
    last = world.step('{"action": "complete"}')
    assert (last.done, last.reward, last.outcome) == (True, 0.5, "failure")
    with pytest.raises(RuntimeError, match="outside an episode"):
        world.step('{"action": "wait"}')
    world.reset(task("infeasible"), 7)
    assert world.step('{"action": "impossible"}').outcome == "success"
    world.close()
    world.close()
    assert comes_true(lambda: lines(asked)[-1] == ["close"])
    click = "pyautogui.click(2, 1)"
    setup = ["setup", [{"type": "launch"}]]
    played = [["step", click, 0.0], ["execute", click], ["step", "WAIT", 0.0], ["step", "DONE", 0.0], ["evaluate"]]
    assert lines(asked) == [OPENED, setup, *played, setup, ["step", "FAIL", 0.0], ["evaluate"], ["close"]]
    assert world.identity["screen"] == "1920x1080"
    assert world._driver.wait(20) == 0


def test_an_episode_is_scored_after_so_many_actions(asked: Path) -> None:
    world = osworld(score_after=2, **QUICK)
    world.reset(task(), 0)
    assert not world.step("nothing that can be read").done
    last = world.step("nor this")
    assert (last.done, last.reward, last.outcome) == (True, 0.5, "failure")
    world.close()


@pytest.mark.parametrize(
    ("wrong", "told", "at"),
    [
        ("setup", "the desktop cannot be set up for the task", "reset"),
        ("screenshot", "the desktop gives no screenshot", "reset"),
        ("unreached", r"did not do 'pyautogui.click\(2, 1\)': None", "step"),
        ("refused", r"did not do 'pyautogui.click\(2, 1\)': {'status'", "step"),
    ],
)
def test_what_osworld_goes_on_with_is_a_fault(asked: Path, wrong: str, told: str, at: str) -> None:
    world = osworld(**QUICK)
    if at == "step":
        world.reset(task(wrong=wrong), 0)
    with pytest.raises(RuntimeError, match=told):
        world.reset(task(wrong=wrong), 0) if at == "reset" else world.step('{"action": "click", "coordinate": [500, 500]}')
    world.close()


def test_a_driver_that_is_gone_is_a_fault(asked: Path) -> None:
    world = osworld(**QUICK)
    world.reset(task(), 0)
    world._driver.kill()
    world._driver.wait()
    with pytest.raises(RuntimeError, match="its driver is gone; it ended with status -9"):
        world.step('{"action": "wait"}')
    world.close()


def test_the_machine_of_a_worker_that_is_killed_is_given_back(asked: Path) -> None:
    with open_pool("osworld", QUICK, settings=PoolSettings(workers=1, start=300.0, deadline=120.0, retries=0)) as pool:
        episode = pool.episode(task(), 0)
        seen = episode.reset().result()
        assert seen.fault is None, seen.detail
        os.kill(episode.pid() or 0, signal.SIGKILL)
        assert comes_true(lambda: lines(asked)[-1] == ["close"])
        assert episode.step('{"action": "wait"}').result().fault == "crashed"
        episode.close()


@pytest.mark.parametrize("example", [None, {"id": "x"}])
def test_a_task_is_a_file_of_osworld(asked: Path, example: object) -> None:
    world = osworld(**QUICK)
    with pytest.raises(ValueError, match=r"task 'a' needs an 'example', .* it lacks .*instruction, evaluator"):
        world.reset({"id": "a", "example": example}, 0)
    world.close()
    assert not asked.exists(), "no machine was started for it"


def test_a_limit_on_turns_below_the_score_is_refused() -> None:
    def problems(**arguments: Any) -> list[str]:
        environment = {"name": "osworld", **arguments}
        more = {"history": {"screens": 1}, "answer_format": "answer_only", "answer_type": "episode", "max_new_tokens": 8}
        return check_task(Task.model_validate({"id": "t", "environment": environment, **more}))

    assert any("environment.max_turns (10) ends an episode before that" in problem for problem in problems(max_turns=10))
    assert not problems()
    assert not problems(max_turns=10, score_after=10)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "pip install desktop-env && export VLMRL_OSWORLD_PYTHON=" in (missing_for("osworld") or "")
    with pytest.raises(RuntimeError, match="a Python with OSWorld"):
        osworld()
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    assert missing_for("osworld") == "VLMRL_OSWORLD_PYTHON names '/nowhere/python', which is no program; name OSWorld's Python"
    with pytest.raises(ValueError, match="score_after 0"):
        osworld(score_after=0)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("a b\n", "pyautogui.typewrite('a b\\n')"),
        ("it's", 'pyautogui.typewrite("it\'s")'),
        ("a<b", "pyautogui.typewrite('a'); pyautogui.hotkey('shift', ','); pyautogui.typewrite('b')"),
        ("<", "pyautogui.hotkey('shift', ',')"),
        ("'); import os #", 'pyautogui.typewrite("\'); import os #")'),
        ("é", None),
        ("", None),
        ("x" * 501, None),
    ],
)
def test_texts_are_literals(text: str, calls: str | None) -> None:
    assert typed(text) == calls


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("Enter", "pyautogui.press('enter')"),
        ("a", "pyautogui.press('a')"),
        ("+", "pyautogui.press('+')"),
        ("ctrl++", "pyautogui.hotkey('ctrl', '+')"),
        ("Control+Shift+ArrowLeft", "pyautogui.hotkey('ctrl', 'shift', 'left')"),
        ("alt+F4", "pyautogui.hotkey('alt', 'f4')"),
        ("super", "pyautogui.press('win')"),
        ("ctrl+nothing", None),
        ("", None),
        ("é", None),
    ],
)
def test_keys_are_those_of_pyautogui(text: str, call: str | None) -> None:
    assert pressed(text) == call


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ('{"action": "tap", "coordinate": [1000, 0]}', "pyautogui.click(199, 0)"),
        ('{"action": "double_click", "coordinate": [500, 500]}', "pyautogui.doubleClick(100, 50)"),
        ('{"action": "press", "coordinate": [0, 0]}', "pyautogui.moveTo(0, 0); pyautogui.mouseDown()"),
        ('{"action": "release", "coordinate": [0, 1000]}', "pyautogui.moveTo(0, 99, duration=0.5); pyautogui.mouseUp()"),
        ('{"action": "type", "text": "a", "coordinate": [10, 10]}', "pyautogui.click(2, 1); pyautogui.typewrite('a')"),
        ('{"action": "scroll", "direction": "down"}', "pyautogui.moveTo(100, 50); pyautogui.scroll(-5)"),
        ('{"action": "scroll", "direction": "left", "coordinate": [0, 0]}', "pyautogui.moveTo(0, 0); pyautogui.hscroll(-5)"),
        ('{"action": "enter"}', "pyautogui.press('enter')"),
        ('{"action": "wait"}', "WAIT"),
        ('{"action": "complete"}', "DONE"),
        ('{"action": "impossible"}', "FAIL"),
        ('{"action": "click"}', None),
        ('{"action": "click", "coordinate": [1001, 0]}', None),
        ('{"action": "scroll", "direction": "in"}', None),
        ('{"action": "type"}', None),
        ('{"action": "open_app", "app_name": "Maps"}', None),
    ],
)
def test_actions_as_they_are_sent(text: str, sent: str | None) -> None:
    action = parse_action(text)
    assert isinstance(action, Action)
    assert sent_as(action, (200, 100)) == sent
