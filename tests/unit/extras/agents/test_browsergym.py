"""agents.worlds.browsergym: against an exchange recorded with BrowserGym 0.14.3, and against the real one where it is installed."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmrl.extras.agents.find import default_tasks, missing_for, open_pool
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.protocol import Environment
from vlmrl.extras.agents.worlds import browsergym as world
from vlmrl.extras.agents.worlds.browsergym import browsergym, missing, sent_as
from vlmrl.extras.agents.worlds.miniwob import folder
from vlmrl.metrics.gui import Action, parse_action

RECORDED = json.loads((Path(__file__).parent / "recorded" / "browsergym.json").read_text(encoding="utf-8"))
"""`click-test-2` of browsergym-miniwob with seed 3: what was asked for, and what of the answers the bridge reads."""
TASK = {"id": "a", "task": "browsergym/miniwob.click-test-2"}


class Unregistered(Exception):
    """As gymnasium's."""


class Calls:
    """As BrowserGym's set of actions, for the recorded calls."""

    def __init__(self, *, subsets: list[str], strict: bool, multiaction: bool):
        self.subsets = subsets

    def to_python_code(self, action: str) -> str:
        if "(" not in action:
            raise ValueError("Received an empty action.")
        if action.partition("(")[0] not in ("mouse_click", "scroll_at", "keyboard_press", "send_msg_to_user", "click"):
            raise NameError("Invalid action type")
        return action

    def describe(self, *, with_long_description: bool, with_examples: bool) -> str:
        return f"actions of {self.subsets}"


class Recorded:
    """Answers what was recorded, in this order, and nothing else."""

    def __init__(self) -> None:
        self.left = list(RECORDED["exchange"])
        self.failing = ""

    def take(self, what: str, asked: object) -> dict[str, Any]:
        if self.failing == what:
            raise OSError("the page is gone")
        expected = self.left.pop(0)
        assert expected[what] == asked
        return expected

    def make(self, name: str, *, action_mapping: object, **more: object) -> Recorded:
        if "nothing" in name:
            raise Unregistered(name)
        self.take("make", [[name], more])
        return self

    def reset(self, *, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.seen(self.take("reset", {"seed": seed})), {}

    def step(self, code: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        took = self.take("step", code)
        return self.seen(took), took["reward"], took["terminated"], took["truncated"], {}

    def close(self) -> None:
        self.take("close", None)

    @staticmethod
    def seen(took: dict[str, Any]) -> dict[str, Any]:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(took["seen"]["screenshot"]))))
        return {**took["seen"], "screenshot": pixels, "axtree_object": {"nodes": []}}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    one = Recorded()
    modules = {
        "browsergym": {"__path__": []},
        "browsergym.core": {"__path__": [], "_get_global_playwright": lambda: None},
        "browsergym.core.action.highlevel": {"HighLevelActionSet": Calls},
        "browsergym.utils.obs": {"flatten_axtree_to_str": lambda tree, more: f"a tree, {len(more)} boxes"},
        "gymnasium": {"make": one.make, "error": SimpleNamespace(UnregisteredEnv=Unregistered)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(world, "_register", lambda name: None)
    return one


CLICK = '{"action": "click", "coordinate": [60, 668]}'


def test_an_episode_is_the_recorded_exchange(recorded: Recorded) -> None:
    bridge = browsergym()
    as_environment: Environment = bridge
    first = as_environment.reset(TASK, 3 + (1 << 32))
    assert first.text.startswith("Task: Click button ONE.\nAnswer with one action as JSON")
    pixels = Recorded.seen(RECORDED["exchange"][1])["screenshot"]
    assert (np.asarray(Image.open(io.BytesIO(first.screens[0]))) == pixels).all()
    assert bridge.propose(0) == CLICK
    assert (bridge.step("click it").outcome, bridge.step("click it").observation) == ("invalid", first)
    assert bridge.step('{"action": "scroll", "direction": "down"}').outcome == ""
    assert bridge.step('{"action": "key", "text": "ctrl+a"}').observation is not None
    last = bridge.step(CLICK)
    assert (last.done, last.reward, last.outcome) == (True, 1.0, "success")
    assert recorded.left == []
    with pytest.raises(RuntimeError, match="outside an episode"):
        bridge.step(CLICK)
    bridge.close()


def test_the_policy_ends_an_episode_and_what_failed_is_told(recorded: Recorded) -> None:
    seen = dict(RECORDED["exchange"][2]["seen"], last_action_error="TimeoutError: nothing there")
    seen["chat_messages"] = [*seen["chat_messages"], {"role": "user", "message": "Go on."}]
    left = {"seen": seen, "reward": 0.5, "terminated": False, "truncated": False}
    recorded.left[2:] = [{**left, "step": "mouse_click(29, 214)"}, {**left, "step": "send_msg_to_user('Done.')"}, {"close": None}]
    bridge = browsergym(explain=False, success_at=0.5, tree=True)
    bridge.reset(TASK, 3)
    told = bridge.step(CLICK)
    assert told.observation is not None
    assert told.observation.text.splitlines() == [
        "Task: Click button ONE.",
        "The user said: Go on.",
        "The last action failed: TimeoutError: nothing there",
        "a tree, 7 boxes",
    ]
    last = bridge.step('{"action": "complete"}')
    assert (last.done, last.reward, last.outcome) == (True, 0.5, "success")
    assert recorded.left == []


def test_calls_are_those_of_the_subsets(recorded: Recorded) -> None:
    bridge = browsergym(actions="calls", subsets=("bid", "chat"))
    first = bridge.reset(TASK, 3)
    assert "actions of ['bid', 'chat']" in first.text
    assert [bridge.step(text).outcome for text in ("click it", CLICK, "goto('file:///etc/hostname')")] == ["invalid"] * 3
    recorded.left[0] = dict(RECORDED["exchange"][2], step="click('a51')")
    assert bridge.step("click('a51')").outcome == ""


def test_a_failure_of_the_world_is_an_exception_and_closes_its_browser(recorded: Recorded) -> None:
    bridge = browsergym()
    bridge.reset(TASK, 3)
    recorded.failing = "step"
    recorded.left[0] = {"close": None}
    with pytest.raises(OSError, match="the page is gone"):
        bridge.step('{"action": "wait"}')
    assert len(recorded.left) == len(RECORDED["exchange"]) - 3
    with pytest.raises(RuntimeError, match="outside an episode"):
        bridge.step('{"action": "wait"}')


def test_pictures_of_a_goal_are_shown_before_the_screen(recorded: Recorded) -> None:
    bridge = browsergym()
    data = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(data, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    for given in (url, {"url": url}):
        seen = Recorded.seen(RECORDED["exchange"][1])
        seen["goal_object"] = [{"type": "text", "text": "Find"}, {"type": "image_url", "image_url": given}, {"type": "text", "text": "it."}]
        bridge._seen = seen
        shown = bridge._observe()
        assert shown.text.startswith("Task: Find it.")
        assert shown.screens[0] == data.getvalue()
        assert len(shown.screens) == 2
    bridge._seen["goal_object"] = [{"type": "image_url", "image_url": "http://10.0.0.1/a.png"}]
    with pytest.raises(ValueError, match="the goal's picture is 'http://10"):
        bridge._observe()


@pytest.mark.parametrize("task", [{"id": "a"}, {"id": "a", "task": 1}, {"id": "a", "task": "openended", "task_kwargs": 1}])
def test_a_task_is_named(recorded: Recorded, task: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"task 'a': it needs a 'task', for example miniwob\.click-test"):
        browsergym().reset(task, 0)


def test_a_task_that_is_not_there_is_told(recorded: Recorded) -> None:
    with pytest.raises(ValueError, match=r"'miniwob\.nothing' is no task of the packages that are installed"):
        browsergym().reset({"id": "a", "task": "miniwob.nothing"}, 0)
    with pytest.raises(ValueError, match="subsets names none"):
        browsergym(actions="calls", subsets=())


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ('{"action": "tap", "coordinate": [1000, 0]}', "mouse_click(99, 0)"),
        ('{"action": "double_click", "coordinate": [500, 500]}', "mouse_dblclick(50, 100)"),
        ('{"action": "right_click", "coordinate": [500, 500]}', "mouse_click(50, 100, 'right')"),
        ('{"action": "press", "coordinate": [0, 0]}', "mouse_down(0, 0)"),
        ('{"action": "release", "coordinate": [0, 1000]}', "mouse_up(0, 199)"),
        ('{"action": "type", "text": "it\'s\\n\\"so\\""}', "keyboard_type('it\\'s\\n\"so\"')"),
        ('{"action": "type", "text": "a", "coordinate": [10, 10]}', "mouse_click(1, 2)\nkeyboard_type('a')"),
        ('{"action": "key", "text": "ctrl+shift+left"}', "keyboard_press('Control+Shift+ArrowLeft')"),
        ('{"action": "key", "text": "space"}', "keyboard_press('Space')"),
        ('{"action": "enter"}', "keyboard_press('Enter')"),
        ('{"action": "scroll", "direction": "up"}', "scroll_at(50, 100, 0, -100)"),
        ('{"action": "scroll", "direction": "right", "coordinate": [100, 100]}', "scroll_at(10, 20, 50, 0)"),
        ('{"action": "back"}', "go_back()"),
        ('{"action": "wait"}', "noop(1000)"),
        ('{"action": "answer", "text": "1751"}', "send_msg_to_user('1751')"),
        ('{"action": "impossible"}', "report_infeasible('The task cannot be done.')"),
        ('{"action": "click"}', None),
        ('{"action": "click", "coordinate": [1001, 0]}', None),
        ('{"action": "scroll", "direction": "in"}', None),
        ('{"action": "type", "text": ""}', None),
        ('{"action": "key", "text": "F5"}', None),
        ('{"action": "answer"}', None),
        ('{"action": "open_app", "app_name": "Maps"}', None),
    ],
)
def test_actions_as_they_are_sent(text: str, sent: str | None) -> None:
    action = parse_action(text)
    assert isinstance(action, Action)
    assert sent_as(action, (200, 100)) == sent


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(world.importlib.util, "find_spec", lambda name: None)
    assert missing_for("browsergym") == (
        "the package browsergym-core, and its browser; install: pip install 'vlmrl[browsergym]' && playwright install chromium"
    )
    monkeypatch.setattr(world.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    assert missing() == f"the browser of playwright, in {tmp_path}; install: playwright install chromium"
    (tmp_path / "chromium-1117").mkdir()
    assert missing() is None


# ---- the real one ---------------------------------------------------------------------------------------------------

needs_browsergym = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")
SETTINGS = PoolSettings(workers=1, start=300.0, deadline=120.0, retries=0)


@needs_browsergym
@pytest.mark.skipif(folder() is None, reason="needs the pages: pip install 'vlmrl[miniwob]'")
def test_the_real_one_plays_the_recorded_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("browsergym.miniwob", reason="needs pip install browsergym-miniwob")
    monkeypatch.setenv("MINIWOB_URL", f"file://{folder()}/miniwob/")
    with open_pool("browsergym", {"explain": False}, settings=SETTINGS) as pool:
        for _ in range(2):
            episode = pool.episode(TASK, 3)
            first = episode.reset().result()
            assert first.fault is None, first.detail
            assert first.observation is not None
            assert first.observation.text == "Task: Click button ONE."
            assert episode.step("click it").result().observation == first.observation
            moved = episode.step('{"action": "key", "text": "ctrl+a"}').result()
            assert moved.fault is None, moved.detail
            assert episode.propose(0).result().action == CLICK
            last = episode.step(CLICK).result()
            assert (last.done, last.reward, last.outcome, last.fault) == (True, 1.0, "success", None)
            episode.close()
        wrong = pool.episode({"id": "a", "task": "miniwob.nothing"}, 3)
        assert "is no task of the packages" in wrong.reset().result().detail


@needs_browsergym
def test_calls_of_the_real_one() -> None:
    page = "data:text/html,<button onclick=\"document.body.style.background='red'\">b</button>"
    task = {"id": "a", "task": "openended", "task_kwargs": {"start_url": page, "goal": "Press it."}}
    with open_pool("browsergym", {"actions": "calls", "tree": True}, settings=SETTINGS) as pool:
        episode = pool.episode(task, 0)
        seen = episode.reset().result()
        assert seen.fault is None, seen.detail
        assert seen.observation is not None
        assert "click('a51')" in seen.observation.text
        number = next(line.split("]")[0].strip(" \t[") for line in seen.observation.text.splitlines() if "button 'b'" in line)
        assert [episode.step(text).result().outcome for text in ("press b", "mouse_click(1, 1)")] == ["invalid", "invalid"]
        pressed = episode.step(f"click('{number}')").result()
        assert pressed.observation is not None
        shown = np.asarray(Image.open(io.BytesIO(pressed.observation.screens[0])).convert("RGB"))
        assert tuple(shown[-1, -1]) == (255, 0, 0)
        failed = episode.step("click('nothing')").result()
        assert failed.observation is not None
        assert "The last action failed: " in failed.observation.text
        episode.close()


def test_its_default_task_needs_no_benchmark() -> None:
    assert default_tasks("browsergym")[0]["task"] == "openended"
