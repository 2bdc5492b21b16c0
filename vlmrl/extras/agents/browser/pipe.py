"""The DevTools protocol over two pipes (`--remote-debugging-pipe`): JSON messages that end in a zero byte. No port, no driver program."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
MESSAGE_BYTES = 1 << 26
"""Of the longest message; a screenshot takes thousands."""


class BrowserError(RuntimeError):
    """The browser died, did not answer or refused: a failure of the environment, never an outcome of the policy."""


class Splitter:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole with these bytes, in order.

        Raises:
            BrowserError: what came is no JSON object, or has no end.
        """
        self._rest += data
        if len(self._rest) > MESSAGE_BYTES:
            raise BrowserError(f"the browser sent a message of more than {MESSAGE_BYTES} bytes")
        if b"\0" not in data:  # a long message comes in many pieces: do not look through all of it at each
            return []
        *whole, rest = self._rest.split(b"\0")
        self._rest = rest
        return [_message(bytes(one)) for one in whole]


def _message(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BrowserError(f"the browser sent what is no JSON: {text[:100]!r}") from error
    if not isinstance(value, dict):
        raise BrowserError(f"the browser sent what is no message: {text[:100]!r}")
    return value


class Pipe:
    """Calls, and events by session. Used by one thread; events are handled while it waits for a reply."""

    def __init__(self, requests: int, replies: int, *, seconds: float, died: Callable[[], str]):
        """`requests` and `replies`: descriptors to write to and to read from. `seconds`: deadline of a call. `died`: how, for messages."""
        self._requests, self._replies, self._died = requests, replies, died
        os.set_blocking(requests, False)
        self.seconds = seconds
        self.closed = False
        self._splitter = Splitter()
        self._number = 0
        self._waiting: dict[int, dict[str, Any] | None] = {}
        self._handlers: dict[str, Callable[[Event], None]] = {}

    def listen(self, session: str, handler: Callable[[Event], None]) -> None:
        """Have the events of a session handled. A handler sends, and waits for nothing."""
        self._handlers[session] = handler

    def forget(self, session: str) -> None:
        """No longer handle the events of a session."""
        self._handlers.pop(session, None)

    def tell(self, method: str, parameters: Mapping[str, Any], session: str | None = None) -> int:
        """Send without waiting; the number of the message. What comes of it is thrown away."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._write(json.dumps(message).encode() + b"\0")
        return self._number

    def call(self, method: str, parameters: Mapping[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """Send and wait for the result.

        Raises:
            BrowserError: the browser refused, died, or did not answer in time.
        """
        return self.call_all([(method, parameters or {})], session)[0]

    def call_all(self, calls: Sequence[tuple[str, Mapping[str, Any]]], session: str | None = None) -> list[dict[str, Any]]:
        """Send all, which the browser does in this order, and wait for the results.

        Raises:
            BrowserError: the browser refused one, died, or did not answer in time.
        """
        numbers = [self.tell(method, parameters, session) for method, parameters in calls]
        self._waiting.update(dict.fromkeys(numbers))
        try:
            for number, (method, _) in zip(numbers, calls, strict=True):
                self.until(lambda number=number: self._waiting[number] is not None, method)
            replies = [self._waiting[number] or {} for number in numbers]
        finally:
            for number in numbers:
                del self._waiting[number]
        for (method, _), reply in zip(calls, replies, strict=True):
            if "error" in reply:
                raise BrowserError(f"{method}: {reply['error'].get('message', reply['error'])}")
        return [reply["result"] for reply in replies]

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Handle messages until something has happened.

        Raises:
            BrowserError: the browser died, or it did not happen in time.
        """
        end = time.monotonic() + self.seconds
        while not happened():
            self._open()
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise BrowserError(f"{what}: no answer of the browser within {self.seconds:g} seconds")
            data = os.read(self._replies, 1 << 20)
            if not data:
                raise BrowserError(f"{what}: the browser is gone{self._died()}")
            for message in self._splitter.feed(data):
                self._handle(message)

    def _open(self) -> None:
        """The numbers of closed descriptors may be those of other files by now."""
        if self.closed:
            raise BrowserError("the browser was ended")

    def _handle(self, message: Mapping[str, Any]) -> None:
        number = message.get("id")
        if number is not None:
            if number in self._waiting:
                self._waiting[number] = dict(message)
        elif message.get("sessionId") in self._handlers:
            self._handlers[message["sessionId"]](message)

    def _write(self, data: bytes) -> None:
        end, rest = time.monotonic() + self.seconds, memoryview(data)
        while rest:
            self._open()
            left = end - time.monotonic()
            if left <= 0 or not select.select([], [self._requests], [], left)[1]:
                raise BrowserError(f"the browser reads nothing for {self.seconds:g} seconds")
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BrokenPipeError as error:
                raise BrowserError(f"the browser is gone{self._died()}") from error
