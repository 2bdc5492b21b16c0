"""agents.worlds.android_world: the bridge against a recorded exchange of our own making, made from the source of AndroidWorld's server."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmrl.extras.agents.protocol import Environment
from vlmrl.extras.agents.worlds.android_world import AndroidWorld, android_world, sent_as
from vlmrl.metrics.gui import Action, parse_action

SCREEN = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
TASK = "task_type=ContactsAddContact&task_idx=0"
OK = {"status": "success", "message": ""}
SHOWN = ("GET /screenshot?wait_to_stabilize=true", None, {"pixels": SCREEN.tolist()})
EXCHANGE: list[tuple[str, Any, dict[str, Any]]] = [
    ("GET /suite/reinitialize?n_task_combinations=1&seed=7&task_family=android_world", None, OK),
    ("POST /reset?go_home=true", None, OK),
    (f"POST /task/initialize?{TASK}", None, OK),
    (f"GET /task/goal?{TASK}", None, {"goal": "Add Ada."}),
    SHOWN,
    ("POST /execute_action", {"action_type": "click", "x": 1, "y": 1}, OK),
    SHOWN,
    SHOWN,  # an action that cannot be read is not sent
    ("POST /execute_action", {"action_type": "status", "goal_status": "complete"}, OK),
    (f"GET /task/score?{TASK}", None, {"score": 1.0}),
    (f"POST /task/tear_down?{TASK}", None, OK),
]
"""(what is asked, its body, the answer), in order."""


class Recorded(HTTPServer):
    """Answers what was recorded, in this order, and nothing else."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.left = list(EXCHANGE)
        self.wrong: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Recorded  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        expected, of_body, answer = self.server.left[0] if self.server.left else ("nothing", None, {})
        said = f"{self.command} {self.path}"
        right = (said, body) == (expected, of_body)
        if right:
            self.server.left.pop(0)
        else:
            self.server.wrong.append(f"{said} {body}, expected {expected} {of_body}")
        data = json.dumps(answer).encode()
        self.send_response(200 if right else 500)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    server = Recorded()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def bridge(server: Recorded) -> AndroidWorld:
    return android_world(servers=(f"http://127.0.0.1:{server.server_port}",), timeout=30.0)


def test_an_episode_is_the_recorded_exchange(recorded: Recorded) -> None:
    world = bridge(recorded)
    as_environment: Environment = world
    first = as_environment.reset({"id": "a", "task_type": "ContactsAddContact"}, 7)
    assert first.text == "Task: Add Ada."
    assert (np.asarray(Image.open(io.BytesIO(first.screens[0]))) == SCREEN).all()
    assert world.step('{"action": "click", "coordinate": [500, 300]}').observation == first
    unread = world.step("click it")
    assert (unread.outcome, unread.observation) == ("invalid", first)
    last = world.step('{"action": "complete"}')
    assert (last.done, last.reward, last.outcome) == (True, 1.0, "success")
    with pytest.raises(RuntimeError, match="outside an episode"):
        world.step('{"action": "wait"}')
    world.close()
    assert (recorded.left, recorded.wrong) == ([], [])


def test_a_server_has_one_episode_at_a_time_and_a_refusal_is_an_exception(recorded: Recorded) -> None:
    first, second = bridge(recorded), bridge(recorded)
    first.reset({"task_type": "ContactsAddContact"}, 7)
    with pytest.raises(RuntimeError, match="all of 1 servers are in use; name as many as there are episodes at once"):
        second.reset({"task_type": "ContactsAddContact"}, 7)
    with pytest.raises(OSError, match="500"):
        first.step('{"action": "wait"}')  # nobody recorded this
    with pytest.raises(OSError, match="500"):
        first.close()
    with pytest.raises(OSError, match="500"):
        second.reset({"task_type": "ContactsAddContact"}, 7)  # the server is free again
    second.close()


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ('{"action": "tap", "coordinate": [1000, 0]}', {"action_type": "click", "x": 99, "y": 0}),
        ('{"action": "double_click", "coordinate": [500, 500]}', {"action_type": "double_tap", "x": 50, "y": 100}),
        ('{"action": "type", "text": "Ada"}', {"action_type": "input_text", "text": "Ada"}),
        ('{"action": "scroll", "direction": "Down"}', {"action_type": "scroll", "direction": "down"}),
        ('{"action": "open_app", "app_name": "Maps"}', {"action_type": "open_app", "app_name": "Maps"}),
        ('{"action": "back"}', {"action_type": "navigate_back"}),
        ('{"action": "enter"}', {"action_type": "keyboard_enter"}),
        ('{"action": "answer", "text": "4"}', {"action_type": "answer", "text": "4"}),
        ('{"action": "impossible"}', {"action_type": "status", "goal_status": "infeasible"}),
        ('{"action": "click"}', None),
        ('{"action": "click", "coordinate": [1001, 0]}', None),
        ('{"action": "scroll", "direction": "in"}', None),
        ('{"action": "input_text"}', None),
        ('{"action": "hotkey", "text": "ctrl"}', None),
    ],
)
def test_actions_as_they_are_sent(text: str, sent: dict[str, Any] | None) -> None:
    action = parse_action(text)
    assert isinstance(action, Action)
    assert sent_as(action, (200, 100)) == sent


@pytest.mark.parametrize("servers", [(), ("http://127.0.0.1:1",) * 2, ("127.0.0.1:5000",), ("ftp://127.0.0.1",), ("http://127.0.0.1/x",)])
def test_addresses_that_are_none_are_refused(servers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="environment 'android_world'"):
        android_world(servers=servers)


def test_a_task_names_its_type() -> None:
    with pytest.raises(ValueError, match="has no task_type"):
        android_world().reset({"id": "a"}, 0)
