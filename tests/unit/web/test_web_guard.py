"""The guard: who may ask, with what, and how much at once. What it refuses reaches nothing behind it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.asgi import Answer, ask, asks
from vlmrl.web.guard import MAX_DEPTH, MAX_VALUES, Guard, Refusal, read_json

HERE = ("host", "127.0.0.1:8000")
JSON = ("content-type", "application/json")


class Behind:
    """An application that says what reached it; a request for `/wait` is answered once `gate` is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.gate = asyncio.Event()
        self.waits = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        if scope["path"] == "/wait":
            self.waits.set()
            await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"answered"})


def guarded(behind: Behind, **more: Any) -> Guard:
    def shows(refusal: Refusal) -> tuple[str, bytes]:
        return "text/plain", refusal.reason.encode()

    given = {"allows": lambda scope, headers: headers.get("authorization") != "wrong", "methods": ("GET", "POST")}
    return Guard(behind, shows=shows, **given | more)


def test_who_is_from_here_is_answered() -> None:
    behind = Behind()
    app = guarded(behind, headers={"x-own": "2"})
    for headers in (
        [HERE],
        [("host", "localhost")],
        [("host", "[::1]:8000"), ("origin", "http://[::1]:8000")],
        [HERE, ("sec-fetch-site", "none")],
        [HERE, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8000")],
    ):
        answer = ask(app, "GET", "/a", headers=headers)
        assert (answer.status, answer.body, answer.headers["x-own"]) == (200, b"answered", "2")
    assert ask(app, "POST", "/a", headers=[HERE, ("content-type", "Application/JSON; charset=utf-8")], parts=[b"{", b"}"]).status == 200
    assert behind.bodies == [b""] * 5 + [b"{}"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "evil.example")], 403),
        ([("host", "evil.example:8000")], 403),
        ([("host", "127.0.0.1.evil.example")], 403),
        ([("host", "")], 403),
        ([], 403),
        ([HERE, ("origin", "http://evil.example")], 403),
        ([HERE, ("origin", "http://127.0.0.1:9999")], 403),
        ([HERE, ("origin", "null")], 403),
        ([HERE, ("sec-fetch-site", "cross-site")], 403),
        ([HERE, ("sec-fetch-site", "same-site")], 403),
        ([HERE, ("authorization", "wrong")], 401),
        ([HERE, ("content-type", "text/plain")], 415),
        ([HERE, ("content-type", "multipart/form-data; boundary=application/json")], 415),
        ([HERE, ("content-type", "")], 415),
        ([HERE, JSON, ("content-length", "101")], 413),
    ],
    ids=str,
)
def test_others_reach_nothing(headers: list[tuple[str, str]], status: int) -> None:
    behind = Behind()
    given = headers if any(name == "content-type" for name, _ in headers) or status == 415 else [*headers, JSON]
    answer = ask(guarded(behind, max_body=100), "POST", "/a", headers=given, parts=[b"{}"])
    assert answer.status == status
    assert answer.body
    assert behind.bodies == []


@pytest.mark.parametrize("path", ["/a/../b", "/a/%2e%2E/b", "/a/..%2fb", "/a%5Cb", "/a\\b", "//b", "/a%00"])
def test_a_path_that_climbs_reaches_nothing(path: str) -> None:
    behind = Behind()
    assert ask(guarded(behind), "GET", path, headers=[HERE]).status == 403
    assert behind.bodies == []


def test_other_methods_reach_nothing() -> None:
    behind = Behind()
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        assert ask(guarded(behind), method, "/a", headers=[HERE, JSON]).status == 405
    assert behind.bodies == []


def test_any_host_may_be_named_where_that_is_said_but_no_foreign_page_asks() -> None:
    app = guarded(Behind(), hosts=None)
    assert ask(app, "GET", "/a", headers=[("host", "model.example")]).status == 200
    assert ask(app, "GET", "/a", headers=[("host", "model.example"), ("origin", "https://model.example")]).status == 200
    assert ask(app, "GET", "/a", headers=[("host", "model.example"), ("origin", "http://evil.example")]).status == 403


def test_a_body_without_a_length_ends_at_the_limit() -> None:
    behind = Behind()
    app = guarded(behind, max_body=100)
    assert ask(app, "POST", "/a", headers=[HERE, JSON], parts=[b"x" * 60, b"x" * 60, b"x" * 60]).status == 413
    assert behind.bodies == []
    assert ask(app, "POST", "/a", headers=[HERE, JSON], parts=[b"x" * 60, b"x" * 40]).status == 200, "what was refused holds nothing"


def test_more_than_so_many_at_once_are_asked_to_come_again() -> None:
    async def scene() -> tuple[Answer, Answer, list[Answer]]:
        behind = Behind()
        app = guarded(behind, at_once=1)
        first = asyncio.create_task(asks(app, "GET", "/wait", headers=[HERE]))
        await behind.waits.wait()
        second = await asks(app, "GET", "/a", headers=[HERE])
        behind.gate.set()
        return second, await first, [await asks(app, "GET", "/a", headers=[HERE]) for _ in range(3)]

    refused, first, later = asyncio.run(scene())
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert [one.status for one in (first, *later)] == [200] * 4


@pytest.mark.parametrize("says", [True, False], ids=["with a length", "without"])
def test_all_bodies_together_have_a_limit(says: bool) -> None:
    def given(size: int) -> dict[str, Any]:
        return {"headers": [HERE, JSON, *([("content-length", str(size))] if says else [])], "parts": [b"x" * size]}

    async def scene() -> list[int]:
        behind = Behind()
        app = guarded(behind, max_body=100)
        first = asyncio.create_task(asks(app, "POST", "/wait", **given(70)))
        await behind.waits.wait()
        during = [(await asks(app, "POST", "/a", **given(size))).status for size in (31, 30, 30)]
        behind.gate.set()
        return [*during, (await first).status, (await asks(app, "POST", "/a", **given(100))).status]

    assert asyncio.run(scene()) == [503, 200, 200, 200, 200]


def test_a_client_that_leaves_while_it_sends_frees_its_place() -> None:
    async def scene() -> Answer:
        behind = Behind()
        app = guarded(behind, at_once=1, max_body=100)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/a",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }

        async def leaves() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody reads it")

        await app(scope, leaves, send)
        assert behind.bodies == []
        return await asks(app, "POST", "/a", headers=[HERE, JSON], parts=[b"x" * 100])

    assert asyncio.run(scene()).status == 200


def nested(depth: int) -> bytes:
    return b"[" * depth + b"1" + b"]" * depth


@pytest.mark.parametrize(
    "data",
    [
        nested(MAX_DEPTH + 1),
        nested(100_000),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"[" * 100_000,
        b"{",
        b"",
        b"\xff\xfe\xfd",
        b"1" * 10_000,
        b'{"a": NaN}',
        b"[-Infinity]",
        b'["\\ud800"]',
        b'{"\\udfff": 1}',
        b'["\xed\xa0\x80"]',
    ],
    ids=lambda data: f"{data[:6]!r} {len(data)}",
)
def test_json_that_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(data)


def test_json_that_is_taken() -> None:
    value = {"messages": [{"content": [{"type": "text", "text": ",:[{" * 1000}]}], "logit_bias": {str(i): -100 for i in range(150_000)}}
    assert read_json(json.dumps(value).encode()) == value
    assert read_json(nested(MAX_DEPTH)) is not None
    assert read_json(b'"\\ud83d\\ude00"') == "\U0001f600"
