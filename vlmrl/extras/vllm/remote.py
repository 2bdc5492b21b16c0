"""One rollout server as the trainer sees it. A server, line or reply that is bad raises nothing: it is a `Lost`, with a reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx
import numpy as np

from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.inputs import Completion, Version
from vlmrl.extras.vllm.messages import BEAT, PREFIX, TYPE, GenerateRequest, answers_from, ask_message, version_from
from vlmrl.extras.vllm.sync import Sync
from vlmrl.extras.vllm.wire import Message, WireError, decode, encode, length

QUIET = 15.0
"""Seconds without a byte after which a server counts as lost."""
CONNECT = 5.0
MOST_REPLY = 2**28
_PIECE = 2**20
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Why there is no reply. `reason`: `connection`, `quiet`, `cut`, `damaged`, `http`, `stopped`, or the server's own
    (`host.RefusalError`): `version`, `load`, `refused`, `ended`."""

    reason: str
    detail: str


class Remote:
    """A server. Threads may ask it at the same time."""

    def __init__(self, address: str, *, token: str | None, quiet: float = QUIET, now: Callable[[], float] = time.monotonic):
        self.address = address
        self.known: set[str] = set()
        """Media that it was sent. Where it has forgotten one, it says so."""
        self.facts: dict[str, Any] = {}
        self.held: Version | None = None
        """What it has, as far as this rank knows."""
        self.failures = 0
        """In a row."""
        self.seen = now()
        """When it was last heard of while it worked."""
        self.resume_at = 0.0
        """Not before then is it asked again."""
        self.sync = Sync(self._call)
        """Which of its parameters hold which weight."""
        self.load = ""
        """Name of the weights that are being sent."""
        self._lock = threading.Lock()
        self._now = now
        self._base = f"http://{address}{PREFIX}"
        self._token = token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(quiet, connect=min(CONNECT, quiet), pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
            follow_redirects=False,
        )

    def close(self) -> None:
        """Give up the connections."""
        self._http.close()

    # ---- how it is -----------------------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether it may be asked now."""
        return self._now() >= self.resume_at

    def heard(self) -> None:
        """It works."""
        self.seen = self._now()

    def worked(self) -> None:
        """It gave an answer."""
        self.failures = 0
        self.heard()

    def failed(self) -> None:
        """It gave none: it is left alone for a while, longer every time."""
        with self._lock:
            if self.is_due():  # requests that were lost together count once
                self.failures += 1
                self.resume_at = self._now() + min(_LONGEST_PAUSE, 0.25 * 2**self.failures)

    # ---- exchanges -----------------------------------------------------------------------------------------------------

    def health(self) -> Lost | None:
        """Ask what it is and holds (`facts`, `held`); None where it has answered.

        Raises:
            ConfigError: it wants another token, or is no rollout server.
        """
        try:
            reply = self._http.get(f"{self._base}health")
        except httpx.TransportError as error:
            return _of(error)
        self._require_allowed(reply.status_code)
        if reply.status_code >= 500:
            return Lost(reason="http", detail=f"HTTP {reply.status_code}")
        try:
            told = reply.json()
        except ValueError:
            told = None
        if not isinstance(told, dict) or told.get("vlmrl") != 1:
            raise ConfigError(f"rollout.vllm.servers: what answers at {self.address} is no rollout server of this version of vlmrl")
        if told.get("alive") is not True:
            return Lost(reason="ended", detail="its engine does not get on")
        try:
            self.held = None if told["version"] is None else version_from(told["version"])
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))
        self.facts = told
        return None

    def post(
        self, path: str, pieces: Sequence[memoryview], *, stop: Callable[[], bool] = lambda: False, beat: Callable[[], None] = lambda: None
    ) -> Message | Lost:
        """Send a message, and wait for the reply as long as the server lives.

        Args:
            stop: asked now and then; with True the reply is not waited for.
            beat: called when the server says that it works on it.

        Raises:
            ConfigError: it wants another token.
        """
        headers = {"Content-Type": TYPE, "Content-Length": str(length(pieces))}
        data = bytearray()
        try:
            with self._http.stream("POST", f"{self._base}{path}", content=_cut(pieces), headers=headers) as response:
                for chunk in response.iter_raw():
                    data += chunk
                    if len(data) < _PIECE and not data.strip(BEAT):
                        data.clear()
                        beat()
                    if len(data) > MOST_REPLY:
                        return Lost(reason="damaged", detail=f"a reply of more than {MOST_REPLY} bytes")
                    if stop():
                        return Lost(reason="stopped", detail="nobody waits for it any more")
        except httpx.TransportError as error:
            return _of(error)
        self._require_allowed(response.status_code)
        if response.status_code != 200:
            return Lost(reason="http", detail=f"HTTP {response.status_code}: {_shown(data)}")
        try:
            message = decode(bytearray(data.lstrip(BEAT)))
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))
        if "error" in message.body:
            told = message.body["error"]
            known = isinstance(told, dict) and isinstance(told.get("reason"), str)
            return Lost(reason=told["reason"] if known else "damaged", detail=_shown(str(told).encode()))
        return message

    def ask(
        self, ask: GenerateRequest, patches: Callable[[Sequence[str]], Mapping[str, np.ndarray]], *, stop: Callable[[], bool]
    ) -> list[Completion] | Lost:
        """Answers to a prompt, one for each seed, by the weights that were asked for.

        Args:
            patches: those of media, by key; asked for where the server does not have them.
        """
        keys = [medium.key for medium in ask.placed.media]
        for _ in range(2):
            unknown = [key for key in dict.fromkeys(keys) if key not in self.known]
            reply = self.post("generate", ask_message(replace(ask, patches=patches(unknown))), stop=stop, beat=self.heard)
            if isinstance(reply, Lost):
                return reply
            missing = reply.body.get("missing")
            if not missing:
                break
            if not isinstance(missing, list) or not set(missing) <= set(keys):
                return Lost(reason="damaged", detail="it misses media that were not asked about")
            self.known.difference_update(missing)
        else:
            return Lost(reason="refused", detail="it does not keep the media that it is sent")
        self.known.update(keys)
        try:
            version, answers = answers_from(reply, ask.placed.ids)
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))
        if version != ask.version:
            return Lost(reason="version", detail=f"answered with weights {version}, asked for {ask.version}")
        if len(answers) != len(ask.seeds):
            return Lost(reason="damaged", detail=f"{len(answers)} answers to {len(ask.seeds)} seeds")
        return answers

    # ---- weights -------------------------------------------------------------------------------------------------------

    def begin(self, load: str, *, language_only: bool) -> Lost | None:
        """Weights are coming."""
        self.load, self.held = load, None
        return _none(self.post("weights/begin", encode({"load": load, "language_only": language_only})))

    def part(self, pieces: Sequence[memoryview]) -> Lost | None:
        """Some of them."""
        return _none(self.post("weights/load", pieces))

    def finish(self) -> Any | Lost:
        """All are there: where each went (`worker.LoadReport`)."""
        reply = self.post("weights/finish", encode({"load": self.load}))
        if isinstance(reply, Lost):
            return reply
        loaded = reply.body.get("loaded")
        if not isinstance(loaded, dict) or set(loaded) != {"landed", "parameters"}:
            return Lost(reason="damaged", detail="it does not say where the weights went")
        return loaded

    def commit(self, version: Version) -> Lost | None:
        """They may be used."""
        lost = _none(self.post("weights/commit", encode({"load": self.load, "version": asdict(version)})))
        self.held = version if lost is None else None
        if lost is None:
            self.worked()
            self.resume_at = 0.0
        return lost

    def _call(self, method: str, *arguments: Any) -> Any:
        """What `Sync` asks for: sums of parameters.

        Raises:
            Gone: it did not answer.
        """
        assert method == "vlmrl_sums"
        reply = self.post("weights/sums", encode({"load": self.load, "names": list(arguments[0])}))
        if isinstance(reply, Lost):
            raise Gone(reply)
        sums = reply.body.get("sums")
        if not isinstance(sums, dict) or set(sums) != set(arguments[0]):
            raise Gone(Lost(reason="damaged", detail="it does not give the sums that it was asked for"))
        return sums

    def _require_allowed(self, status: int) -> None:
        if status == 401:
            given = "without a token" if self._token is None else "with another token than its own"
            raise ConfigError(f"rollout.vllm.token_file: the server at {self.address} was asked {given}")


class Gone(Exception):
    """A server was lost where its answer is needed at once."""

    def __init__(self, lost: Lost):
        self.lost = lost
        super().__init__(f"{lost.reason}: {lost.detail}")


def _none(reply: Message | Lost) -> Lost | None:
    return reply if isinstance(reply, Lost) else None


def _cut(pieces: Sequence[memoryview]) -> Iterator[bytes]:
    for piece in pieces:
        flat = piece.cast("B") if piece.format != "B" else piece
        for place in range(0, len(flat), _PIECE):
            yield bytes(flat[place : place + _PIECE])


def _of(error: httpx.TransportError) -> Lost:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        reason = "connection"
    else:
        reason = "quiet" if isinstance(error, httpx.TimeoutException) else "cut"
    return Lost(reason=reason, detail=str(error)[:200] or type(error).__name__)


def _shown(raw: bytes | bytearray) -> str:
    text = bytes(raw[:1000]).decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]
