"""The client of one reward service: parallel requests with retries, behind the limit and the breaker; and the meters of all clients."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from vlmrl.errors import RemoteError
from vlmrl.extras.judges.throttle import OVERLOAD, Breaker, Limit, Timing
from vlmrl.extras.judges.transport import Endpoint, Failure, exchange

NAMES = (
    "judge/calls",
    "judge/retries",
    "judge/slowdowns",
    "judge/reasks",
    "judge/cache_hits",
    "judge/unjudged",
    "judge/prompt_tokens",
    "judge/completion_tokens",
    "judge/cost",
    "judge/request_seconds",
    "reward/wait_seconds",
)
"""`request_seconds`: inside HTTP exchanges, all threads together; `wait_seconds`: in back-off and while a service was down, likewise;
`slowdowns`: how often requests at once were halved because a service had too much to do."""


def _zeros() -> dict[str, float]:
    return {name: 0.0 for name in NAMES}


class Meters:
    """Counters since they were last read, and reasons (`column/reason`) since the beginning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = _zeros()
        self._reasons: Counter[str] = Counter()

    def add(self, name: str, amount: float = 1.0) -> None:
        """Add to one of `NAMES`; KeyError for any other."""
        with self._lock:
            self._counts[name] = self._counts[name] + amount

    def unjudged(self, column: str, reason: str) -> None:
        """Count a verdict that could not be had."""
        with self._lock:
            self._counts["judge/unjudged"] += 1
            self._reasons[f"{column}/{reason}"] += 1

    def tokens(self, prompt: int, completion: int, *, price_in: float, price_out: float) -> None:
        """Count the tokens of one reply; prices are per million."""
        with self._lock:
            self._counts["judge/prompt_tokens"] += prompt
            self._counts["judge/completion_tokens"] += completion
            self._counts["judge/cost"] += (prompt * price_in + completion * price_out) / 1e6

    def peek(self) -> dict[str, float]:
        """The counters, without resetting them."""
        with self._lock:
            return dict(self._counts)

    def read(self) -> dict[str, float]:
        """The counters since the last call, for a step's log line."""
        with self._lock:
            counts, self._counts = self._counts, _zeros()
            return counts

    def reasons(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._reasons.items()))


ATTEMPTS = 6
"""Tries of one request while the service is up for others; being asked to slow down (429) is none."""
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """One service. Safe for several threads.

    A request that keeps failing is given up only after a harmless question (`canary`) has been answered: then it is the request, and
    it comes back as a `Failure`. If that fails too, it is the service, and all threads wait for it. `limit` says how many requests may
    be under way at once: at most the endpoint's `concurrency`, fewer while the service has too much to do.
    """

    def __init__(self, endpoint: Endpoint, *, timing: Timing, meters: Meters, secret: str | None):
        self.endpoint = endpoint
        self.meters = meters
        self._timing = timing
        self._secret = secret
        from vlmrl.extras.judges.network import open_pool

        self._http = open_pool(endpoint.concurrency)
        self._pool = ThreadPoolExecutor(max_workers=endpoint.concurrency, thread_name_prefix="vlmrl-judge")
        name = f"the reward service '{endpoint.model}' at {endpoint.url}"
        waited = self._count_wait
        self.breaker = Breaker(name, max_wait=endpoint.max_wait, timing=timing, waited=waited)
        self.limit = Limit(endpoint.concurrency, timing=timing, waited=waited)

    def send(self, path: str, body: Mapping[str, Any], *, name: str, canary: Mapping[str, Any]) -> dict[str, Any] | Failure:
        """The JSON object that the service answers to `body`, or why it does not answer this request though it is up.

        Args:
            path: below the endpoint's address; empty for the address itself.
            name: of the request, for the jitter of its pauses.
            canary: a small body that any healthy service of the kind answers.

        Raises:
            RemoteError: the service stayed down for `max_wait`, or can never answer (wrong key, wrong address, a redirect).
            Preempted: the run was asked to stop.
        """
        data = _encoded(body)
        attempts, number, spent = 0, 0, 0.0
        while True:
            self.breaker.wait(lambda: self._is_up(path, canary))
            reply, took = self._exchange(path, data)
            spent += took
            if not isinstance(reply, Failure) or reply.kind == "refused":
                self.breaker.success()
                return reply
            self.breaker.failure(reply.detail)
            attempts += reply.reason != "http_429"
            number += 1
            if (attempts >= ATTEMPTS or spent >= self.endpoint.deadline) and not self.breaker.open:
                if self._is_up(path, canary):
                    self.breaker.success()
                    return reply
                self.breaker.failure(reply.detail)
                attempts, spent = 0, 0.0
            self.meters.add("judge/retries")
            if not self.breaker.open:
                spent += self._back_off(name, number, reply.retry_after)

    def get(self, path: str) -> dict[str, Any] | Failure:
        """The JSON object that is at `path`, or why it is not had. Asked for once.

        Raises:
            RemoteError: the service can never answer (wrong key, wrong address, a redirect).
            Preempted: the run was asked to stop.
        """
        return self._exchange(path, None)[0]

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`function` of each item, in order, at most `concurrency` at once. The first error rises; what had not begun is dropped."""
        futures = [self._pool.submit(function, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait([future for future in futures if not future.cancelled()])
        errors = [e for future in futures if not future.cancelled() and (e := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End threads and connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._http.close()

    def _exchange(self, path: str, data: bytes | None) -> tuple[dict[str, Any] | Failure, float]:
        """The reply to what is posted (None: to a GET), and the seconds that it took; waiting for a turn is not among them.

        Raises:
            RemoteError: the service can never answer.
            Preempted: the run was asked to stop.
        """
        url = f"{self.endpoint.url.rstrip('/')}/{path}".rstrip("/")
        with self.limit.request() as begun:
            started = self._timing.now()
            self.meters.add("judge/calls")
            reply = exchange(
                self._http, url, data, timeout=self.endpoint.timeout, secret=self._secret, now=self._timing.now, wall=self._timing.wall
            )
            took = self._timing.now() - started
            self.meters.add("judge/request_seconds", took)
            self._learn(reply, begun)
        if isinstance(reply, Failure) and reply.kind == "unusable":
            hint = self._key_hint() if reply.reason in ("http_401", "http_403", "http_407") else "check endpoint.url and endpoint.model"
            raise RemoteError(f"{self.breaker.name} cannot be used: {reply.detail}; {hint}, then run the same command to go on")
        return reply, took

    def _learn(self, reply: dict[str, Any] | Failure, begun: int) -> None:
        """What a reply says about how much the service can take."""
        if not isinstance(reply, Failure) or reply.kind == "refused":
            self.limit.answered()
            return
        if reply.reason in OVERLOAD and self.limit.overloaded(begun):
            self.meters.add("judge/slowdowns")
        if reply.retry_after is not None:
            self.limit.close_for(min(reply.retry_after, self.endpoint.max_wait))

    def _key_hint(self) -> str:
        if self.endpoint.key_env is None:
            return "it wants a key: name the environment variable that holds it as endpoint.key_env"
        return f"check the key in the environment variable {self.endpoint.key_env}"

    def _is_up(self, path: str, canary: Mapping[str, Any]) -> bool:
        reply, _ = self._exchange(path, _encoded(canary))
        return not isinstance(reply, Failure) or reply.kind == "refused"

    def _back_off(self, name: str, number: int, retry_after: float | None) -> float:
        """Wait before the next try; the seconds that it took. Full jitter in the upper half, so that threads do not return together."""
        pause = min(LAST_PAUSE, FIRST_PAUSE * 2 ** min(number - 1, 16)) * (0.5 + 0.5 * self._timing.jitter(name, number))
        if retry_after is not None:
            pause = max(pause, min(retry_after, self.endpoint.max_wait))
        began = self._timing.now()
        self._timing.pause(pause)
        took = self._timing.now() - began
        self._count_wait(took)
        return took

    def _count_wait(self, seconds: float) -> None:
        self.meters.add("reward/wait_seconds", seconds)


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
