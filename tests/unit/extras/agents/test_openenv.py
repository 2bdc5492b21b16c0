"""worlds.openenv against a stand-in that speaks the protocol: it keeps what environments must keep. And its line alone."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.openenv_stand_in import serving
from tests.unit.extras.agents.test_env_check import look
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.find import default_tasks
from vlmrl.extras.agents.worlds.openenv import Line, OpenEnv, _pictures, openenv
from vlmrl.extras.toy.picture import png, size_of


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as at:
        yield at


def corridor(url: str, **more: Any) -> OpenEnv:
    made = openenv(**{"url": url, "action": "move", "screens": ["picture"], "timeout": 5.0, **more})
    made.reset({"id": "a", "reset": {"at": 1}}, 0)
    return made


def test_it_keeps_everything(url: str) -> None:
    done = look("openenv", url=url, action="move", screens=["picture"], tries=["left", "right"], retries=1)
    assert done.ok, done.lines()
    assert done.found["invalid"].looked


def test_an_episode(url: str) -> None:
    world = corridor(url)
    assert world.identity == {"environment": "openenv", "version": "1", "served name": "corridor", "served version": "0.1"}
    first = world.reset({"id": "a", "reset": {"at": 1}}, 0)
    assert first.text == "said: Go right.\nat: 1"
    assert [size_of(screen) for screen in first.screens] == [(56, 56)]
    unread = world.step("up")
    assert (unread.outcome, unread.observation) == ("invalid", first)
    came = world.step("right")
    assert (came.reward, came.outcome, came.info) == (0.0, "", {"step": 1.0})
    last = world.step("right")
    assert (last.done, last.reward, last.outcome) == (True, 1.0, "success")
    with pytest.raises(RuntimeError, match="after the end"):
        world.step("right")
    assert world.reset({"id": "a", "reset": {"seed": 5}}, 0).text.endswith("at: 2")
    assert corridor(url, success_above=1.0).step("right").outcome == ""
    world.close()
    world.close()


def test_actions_as_json_and_what_is_shown(url: str) -> None:
    world = corridor(url, action="", shows=["at"], screens=None, text="Move.")
    came = world.step('{"move": "left"}').observation
    assert came is not None
    assert (came.text, came.screens) == ("Move.\n0", ())
    assert [world.step(text).outcome for text in ("left", "[1]", '{"other": 1}')] == ["invalid"] * 3


def test_an_error_of_the_world_is_no_transition(url: str) -> None:
    with pytest.raises(ConnectionError, match="EXECUTION_ERROR: the wall fell"):
        corridor(url).step("crash")


def test_pictures_of_fields() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    file = png(pixels)
    told = base64.b64encode(file).decode()
    for given in (told, f"data:image/png;base64,{told}", [told], pixels.tolist(), [pixels.tolist()]):
        assert _pictures("x", given) == [file]
    for wrong in ("no base64!", [[1, 2]], [[[300, 0, 0]]], [[[0.5, 0, 0]]]):
        with pytest.raises(TypeError, match="'x'"):
            _pictures("x", wrong)


@pytest.mark.parametrize("given", ["", "localhost:8000", "ftp://a"])
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        default_tasks("openenv", {"url": given})


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", "no WebSocket there"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "no WebSocket there.*403"),
        (b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: wrong\r\n\r\n", "no WebSocket there"),
        (None, "timed out"),
    ],
)
def test_who_answers_otherwise_is_an_error(said: bytes | None, error: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        left = threading.Event()

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1 << 16)
                if said is None:
                    left.wait(30)
                else:
                    accepted.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            with pytest.raises(OSError, match=error):
                Line(f"ws://127.0.0.1:{listening.getsockname()[1]}/ws", seconds=0.5 if said is None else 10.0)
        finally:
            left.set()
            thread.join()


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_texts_of_every_length_arrive(size: int, url: str) -> None:
    """A step whose action is no action of the server is answered, however long it is."""
    world = corridor(url)
    assert world.step("x" * size).outcome == "invalid"
    assert world.step("right").observation is not None
