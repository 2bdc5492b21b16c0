"""Asks an ASGI application as a server would, header by header, without a client that makes requests proper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


async def asks(
    app: Any, method: str, path: str, headers: Iterable[tuple[str, str]] = (), parts: Iterable[bytes] = (), query: str = ""
) -> Answer:
    """The answer to a request whose body comes in these parts; its client then waits."""
    waiting, answer = list(parts), Answer()

    async def receive() -> dict[str, Any]:
        if waiting:
            part = waiting.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(waiting)}
        await asyncio.Event().wait()
        raise AssertionError("nothing more comes")

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    }
    await app(scope, receive, send)
    return answer


def ask(app: Any, method: str, path: str, **more: Any) -> Answer:
    """`asks`, waited for."""
    return asyncio.run(asks(app, method, path, **more))
