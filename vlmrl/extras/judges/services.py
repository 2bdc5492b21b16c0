"""The services of a run, and rewards that ask them: one client per endpoint, one cache of verdicts, one set of meters.

They belong to the process, as its connections do: a reward is a pure function of the group and its arguments, and what is kept here
(open connections, whether a service is up, verdicts by content) changes how long it takes and never what it returns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.judges.cache import VerdictCache
from vlmrl.extras.judges.client import Client, Meters
from vlmrl.extras.judges.judges import ChatJudge, JudgeQuestion, ScalarModel
from vlmrl.extras.judges.throttle import Timing
from vlmrl.extras.judges.transport import Endpoint
from vlmrl.extras.judges.verdicts import JudgeColumn, Problem, Tally, Verdict
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards import exact as _exact  # noqa: F401 (registers what `correct_by` is by default)
from vlmrl.types import Group


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


def of_run(folder: Path, rank: int, stop: Callable[[], bool]) -> AbstractContextManager[Services]:
    """Open the services of a run, which keep verdicts below its directory and end a wait once the run is asked to `stop`."""
    return session(Services(folder / "judges", rank=rank, timing=Timing(stop=stop)))


EVERY = "every"
"""In place of a column's name: every answered row counts as right."""


def right_rows(group: Group, ctx: RewardContext, by: str) -> list[bool | None]:
    """Whether each rollout is right, by the registered reward `by` with its default arguments: score above 0. None: it cannot judge.

    Raises:
        KeyError: no such reward.
        ValueError: it asks a service itself, or needs arguments.
    """
    if by == EVERY:
        return [True] * len(group.rollouts)
    entry = reward.get(by)
    needed = [p.name for p in entry.parameters.values() if p.required]
    if entry.extra.get("service", False) or needed:
        raise ValueError(f"correct_by '{by}': name a reward by rule that needs no arguments, or '{EVERY}' to judge every row")
    return [None if score is None else score > 0 for score in entry.function(group, ctx)]


def judged(
    endpoint: Mapping[str, Any], column: str, rows: Sequence[JudgeQuestion | float | None], score: Callable[[Verdict], float | None]
) -> JudgeColumn:
    """A column from one question per row, or its score (or None) where nothing has to be asked.

    Raises:
        RemoteError, Preempted, ConfigError, StorageError: as the services.
    """
    asks = [row for row in rows if isinstance(row, JudgeQuestion)]
    replies = iter(services().chat(endpoint).ask_all(column, asks) if asks else [])
    tally = Tally()
    values: list[float | None] = []
    for row in rows:
        if not isinstance(row, JudgeQuestion):
            values.append(row)
            continue
        reply = next(replies)
        values.append(tally.missing(reply) if isinstance(reply, Problem) else score(reply))
    return JudgeColumn(values, tally.reasons)
