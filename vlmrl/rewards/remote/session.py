"""The services of a run: one client per endpoint, one cache, one set of meters, reached by reward columns through `services()`.

They belong to the process, as its connections do: a column is a pure function of the group and its arguments, and what is kept here
(open connections, whether a service is up, verdicts by content) changes how long it takes and never what it returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.rewards.remote.cache import VerdictCache
from vlmrl.rewards.remote.chat import ChatJudge
from vlmrl.rewards.remote.client import Client
from vlmrl.rewards.remote.endpoint import Endpoint
from vlmrl.rewards.remote.meters import Meters
from vlmrl.rewards.remote.scalar import ScalarModel
from vlmrl.rewards.remote.timing import Timing


class Services:
    """Clients by endpoint. `folder`: where verdicts are kept (None: in memory); `rank`: of this process, part of the file's name."""

    def __init__(
        self, folder: Path | None = None, *, rank: int = 0, timing: Timing | None = None, environ: Mapping[str, str] | None = None
    ):
        self.timing = timing or Timing()
        self.meters = Meters()
        self.cache = VerdictCache(folder, rank)
        self._environ = os.environ if environ is None else environ
        self._clients: dict[Endpoint, Client] = {}
        self._lock = threading.Lock()

    def chat(self, endpoint: Mapping[str, Any]) -> ChatJudge:
        """The judge at an endpoint.

        Raises:
            ConfigError: the endpoint is wrong, or its key is not in the environment.
        """
        client = self._client(Endpoint.of(endpoint))
        return ChatJudge(client, self.cache if client.endpoint.cache else None)

    def scalar(self, endpoint: Mapping[str, Any], *, low: float, high: float) -> ScalarModel:
        """The reward model at an endpoint. Raises ConfigError as `chat`."""
        client = self._client(Endpoint.of(endpoint))
        return ScalarModel(client, self.cache if client.endpoint.cache else None, low=low, high=high)

    def read(self) -> dict[str, float]:
        """What the services cost since the last call, for a step's log line; nothing where none was asked for.

        `judge/concurrency` is the present state: requests that may be under way at once, at all services together.
        """
        with self._lock:
            clients = list(self._clients.values())
        if not clients:
            return {}
        return self.meters.read() | {"judge/concurrency": float(sum(client.limit.now for client in clients))}

    def close(self) -> None:
        """End all clients and make the cache durable."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()
        self.cache.close()

    def _client(self, endpoint: Endpoint) -> Client:
        with self._lock:
            if endpoint not in self._clients:
                secret = self._secret(endpoint)
                self._clients[endpoint] = Client(endpoint, timing=self.timing, meters=self.meters, secret=secret)
            return self._clients[endpoint]

    def _secret(self, endpoint: Endpoint) -> str | None:
        if endpoint.key_env is None:
            return None
        value = self._environ.get(endpoint.key_env, "").strip()
        if not value:
            raise ConfigError(
                f"endpoint.key_env: the environment variable {endpoint.key_env} is not set; it must hold the key of the service"
            )
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ConfigError(f"endpoint.key_env: the environment variable {endpoint.key_env} holds characters that no key has")
        return value


_current: Services | None = None
_guard = threading.Lock()


def services() -> Services:
    """The services of the session; outside one those of the process, which keep verdicts in memory."""
    global _current
    with _guard:
        if _current is None:
            _current = Services()
        return _current


@contextmanager
def session(made: Services) -> Iterator[Services]:
    """Within the block `services()` are these; they are closed at its end."""
    global _current
    with _guard:
        before, _current = _current, made
    try:
        yield made
    finally:
        with _guard:
            _current = before
        made.close()
