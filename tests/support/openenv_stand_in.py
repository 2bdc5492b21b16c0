"""A server that speaks as those of OpenEnv do, for a corridor: messages as its source declares them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from vlmrl.extras.toy.picture import png

LENGTH = 4


class Session:
    """One episode after the other. `reset(at=...)` begins there."""

    def __init__(self) -> None:
        self.at = self.steps = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        data = message["data"]
        if message["type"] == "reset":
            self.at, self.steps = int(data.get("at", data["seed"] % (LENGTH - 1))), 0
            return self.seen(None)
        if set(data) - {"move", "metadata"} or data.get("move") not in ("left", "right", "crash"):
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": []}}
        if data["move"] == "crash":
            return {"type": "error", "data": {"message": "the wall fell", "code": "EXECUTION_ERROR"}}
        self.at = min(LENGTH - 1, max(0, self.at + (1 if data["move"] == "right" else -1)))
        self.steps += 1
        return self.seen(float(self.at == LENGTH - 1))

    def seen(self, reward: float | None) -> dict[str, Any]:
        drawn = np.zeros((56, 56, 3), np.uint8)
        drawn[:, self.at * 14 : self.at * 14 + 14] = (30, 30, 200)
        metadata = {"step": self.steps}
        observation = {
            "said": "Go right.",
            "at": self.at,
            "picture": base64.b64encode(png(drawn)).decode(),
            "none": None,
            "metadata": metadata,
        }
        data = {"observation": observation, "reward": reward, "done": self.at == LENGTH - 1, "metadata": metadata}
        return {"type": "observation", "data": data}


def _talk(line: ServerConnection) -> None:
    session = Session()
    for text in line:
        line.send(json.dumps(session.answer(json.loads(text))))


def _plain(line: ServerConnection, request: Request) -> Response | None:
    """What is no WebSocket."""
    if request.path == "/ws":
        return None
    known = request.path == "/metadata"
    return line.respond(
        HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, json.dumps({"name": "corridor", "version": "0.1"}) if known else ""
    )


@contextmanager
def serving() -> Iterator[str]:
    """Its address, while it is served."""
    with serve(_talk, "127.0.0.1", 0, process_request=_plain, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
