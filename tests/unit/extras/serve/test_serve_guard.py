"""What the guard keeps from a served model: pages of other sites, other content than JSON, and too much at once."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from tests.support.asgi import ask, asks
from vlmrl.extras.serve.app import application
from vlmrl.extras.serve.protocol import Chat, Refused

KEY = "key-of-the-test"
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
HERE = [("host", "127.0.0.1:8000"), ("content-type", "application/json")]


class Model:
    """Counts what it is asked, and answers no question; with a gate, only once it is open."""

    def __init__(self, gate: threading.Event | None = None):
        self.asked, self.begun, self.gate = 0, threading.Event(), gate

    def cards(self) -> list[dict[str, Any]]:
        return []

    def ask(self, chat: Chat) -> Any:
        self.asked += 1
        self.begun.set()
        if self.gate is not None:
            self.gate.wait()
        raise Refused("nothing is answered here", code="reached")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://evil.example"), ("content-type", "text/plain")],
        [("origin", "http://evil.example"), ("content-type", "application/json")],
        [("sec-fetch-site", "cross-site"), ("content-type", "application/json")],
        [("content-type", "text/plain")],
        [("content-type", "application/x-www-form-urlencoded")],
    ],
    ids=str,
)
def test_a_page_of_another_site_starts_no_work(key: str | None, headers: list[tuple[str, str]]) -> None:
    model = Model()
    given = [("host", "127.0.0.1:8000"), *headers, *([] if key is None else [("authorization", f"Bearer {key}")])]
    answer = ask(application(model, key=key), "POST", PATH, headers=given, parts=[BODY])
    assert answer.status in (403, 415)
    assert answer.json()["error"]["type"] == "invalid_request_error", "in the form of the protocol"
    assert model.asked == 0


def test_a_client_of_this_machine_is_answered() -> None:
    model = Model()
    assert ask(application(model, key=None), "POST", PATH, headers=HERE, parts=[BODY]).json()["error"]["code"] == "reached"
    assert model.asked == 1


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 40 + b"1" + b"}" * 40, b"{", b"\xff"], ids=len
)
def test_json_that_cannot_be_read_is_refused(body: bytes) -> None:
    model = Model()
    assert ask(application(model, key=None), "POST", PATH, headers=HERE, parts=[body]).status == 400
    assert model.asked == 0


def test_bodies_that_are_under_way_have_a_limit_together() -> None:
    """A request is held until it is answered: one that finds no room is asked to come again."""
    gate = threading.Event()
    model = Model(gate)
    app = application(model, key=None, max_body=2 * len(BODY) - 1)

    async def scene() -> tuple[int, str, int]:
        first = asyncio.create_task(asks(app, "POST", PATH, headers=HERE, parts=[BODY]))
        await asyncio.to_thread(model.begun.wait)
        second = asyncio.create_task(asks(app, "POST", PATH, headers=HERE, parts=[BODY]))
        await asyncio.wait([second], timeout=20)
        gate.set()
        refused = await second
        return refused.status, refused.headers.get("retry-after", ""), (await first).status

    assert asyncio.run(scene()) == (503, "1", 400)
    assert model.asked == 1
