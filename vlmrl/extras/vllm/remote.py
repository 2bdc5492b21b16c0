"""One rollout server as the trainer sees it. A server, line or reply that is bad raises nothing: it is a `Lost`, with a reason."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np
import torch

from vlmrl.config.addresses import address_of
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.carrier import Carrier, CarrierError, Kind, Line, meeting
from vlmrl.extras.vllm.inputs import Completion, Placed, Version
from vlmrl.extras.vllm.wire import (
    BEAT,
    PREFIX,
    TYPE,
    GenerateRequest,
    ScoreRequest,
    WireError,
    answers_from,
    ask_message,
    body_message,
    reply_from,
    score_message,
    scores_from,
    version_from,
)
from vlmrl.extras.vllm.worker import LoadReport

QUIET = 15.0
"""Seconds without a byte after which a server counts as lost."""
CONNECT = 5.0
GRACE = 5.0
"""Seconds that a bucket may take to be through once the server has said that it took it."""
MOST_REPLY = 2**28
_PIECE = 2**20
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Why there is no reply. `reason`: `connection`, `quiet`, `cut`, `damaged`, `http`, `stopped`, or the server's own
    (`wire.RefusalError`): `version`, `load`, `line`, `teacher`, `refused`, `ended`."""

    reason: str
    detail: str


class Remote:
    """A server. Threads may ask it at the same time; one of them sends weights."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None,
        kind: Kind | None = None,
        key: str = "rollout.vllm",
        quiet: float = QUIET,
        now: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            kind: of the group that weights go over; None: nccl where both sides are on CUDA, else gloo.
            key: of the recipe, under which its servers stand.
        """
        self.address = address
        self.key = key
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
        self.load = ""
        """Name of the weights that are being sent."""
        self.carrier: Carrier | None = None
        """Of the group that weights go over."""
        self._kind: Kind | None = kind
        self._lock = threading.Lock()
        self._now = now
        self._base = f"http://{address}{PREFIX}"
        self._token = token
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"with {address}")
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
        self._leave()
        self._aside.shutdown(wait=False)
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
        if not isinstance(told, dict) or told.get("vlmrl") != 2:
            raise ConfigError(f"{self.key}.servers: what answers at {self.address} is no server of this version of vlmrl")
        if told.get("alive") is not True:
            return Lost(reason="ended", detail="its engine does not get on")
        try:
            self.held = None if told["version"] is None else version_from(told["version"])
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))
        self.facts = told
        return None

    def post(
        self, path: str, data: bytes, *, stop: Callable[[], bool] = lambda: False, beat: Callable[[], None] = lambda: None
    ) -> dict[str, Any] | Lost:
        """Send a message, and wait for the reply as long as the server lives.

        Args:
            stop: asked now and then; with True the reply is not waited for.
            beat: called when the server says that it works on it.

        Raises:
            ConfigError: it wants another token.
        """
        headers = {"Content-Type": TYPE, "Content-Length": str(len(data))}
        got = bytearray()
        try:
            with self._http.stream("POST", f"{self._base}{path}", content=_cut(data), headers=headers) as response:
                for chunk in response.iter_raw():
                    got += chunk
                    if len(got) < _PIECE and not got.strip(BEAT):
                        got.clear()
                        beat()
                    if len(got) > MOST_REPLY:
                        return Lost(reason="damaged", detail=f"a reply of more than {MOST_REPLY} bytes")
                    if stop():
                        return Lost(reason="stopped", detail="nobody waits for it any more")
        except httpx.TransportError as error:
            return _of(error)
        self._require_allowed(response.status_code)
        if response.status_code != 200:
            return Lost(reason="http", detail=f"HTTP {response.status_code}: {_shown(got)}")
        try:
            body = reply_from(bytes(got))
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))
        if "error" in body:
            told = body["error"]
            known = isinstance(told, dict) and isinstance(told.get("reason"), str)
            return Lost(reason=told["reason"] if known else "damaged", detail=_shown(str(told).encode()))
        return body

    def ask(
        self, ask: GenerateRequest, patches: Callable[[Sequence[str]], Mapping[str, np.ndarray]], *, stop: Callable[[], bool]
    ) -> list[Completion] | Lost:
        """Answers to a prompt, one for each seed, by the weights that were asked for.

        Args:
            patches: those of media, by key; asked for where the server does not have them.
        """
        reply = self._exchange("generate", ask.placed, lambda keys: ask_message(ask, patches(keys)), stop)
        if isinstance(reply, Lost):
            return reply
        try:
            version, answers = answers_from(reply, ask.placed.ids)
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))
        if version != ask.version:
            return Lost(reason="version", detail=f"answered with weights {version}, asked for {ask.version}")
        if len(answers) != len(ask.seeds):
            return Lost(reason="damaged", detail=f"{len(answers)} answers to {len(ask.seeds)} seeds")
        return answers

    def score(
        self,
        ask: ScoreRequest,
        ids: Sequence[np.ndarray],
        patches: Callable[[Sequence[str]], Mapping[str, np.ndarray]],
        *,
        stop: Callable[[], bool],
    ) -> list[np.ndarray] | Lost:
        """Log-probs of answers under a teacher, float32 [T, K] for each (`wire.score_message`). `patches`: as of `ask`."""
        reply = self._exchange("score", ask.placed, lambda keys: score_message(ask, ids, patches(keys)), stop)
        if isinstance(reply, Lost):
            return reply
        try:
            return scores_from(reply, ask, ids)
        except WireError as error:
            return Lost(reason="damaged", detail=str(error))

    def _exchange(
        self, route: str, placed: Placed, message: Callable[[Sequence[str]], bytes], stop: Callable[[], bool]
    ) -> dict[str, Any] | Lost:
        """Ask about a prompt. `message`: the question, with the media that the server may not have, by their keys."""
        keys = [medium.key for medium in placed.media]
        for _ in range(2):
            unknown = [key for key in dict.fromkeys(keys) if key not in self.known]
            reply = self.post(route, message(unknown), stop=stop, beat=self.heard)
            if isinstance(reply, Lost):
                return reply
            missing = reply.get("missing")
            if not missing:
                self.known.update(keys)
                return reply
            if not isinstance(missing, list) or not set(missing) <= set(keys):
                return Lost(reason="damaged", detail="it misses media that were not asked about")
            self.known.difference_update(missing)
        return Lost(reason="refused", detail="it does not keep the media that it is sent")

    # ---- weights -------------------------------------------------------------------------------------------------------

    def begin(self, load: str, *, language_only: bool, device: torch.device) -> Lost | None:
        """Weights are coming. Where trainer and workers have not met, or the server has begun anew, they meet first.

        Args:
            device: of the trainer's tensors.
        """
        self.load, self.held = load, None
        told = {"load": load, "language_only": language_only}
        if self.carrier is not None:
            lost = self._told("begin", told | {"line": self.carrier.line.name})
            if lost is None or lost.reason != "line":
                return lost
            self._leave()
        try:
            meets = meeting(*address_of(self.address))
        except OSError as error:
            return Lost(reason="connection", detail=str(error))
        host, port = meets.getsockname()[:2]
        both = device.type == "cuda" and self.facts.get("platform") == "cuda"
        kind: Kind = self._kind or ("nccl" if both else "gloo")
        line = Line(host=host, port=port, world=1 + int(self.facts["ranks"]), kind=kind, name=secrets.token_hex(8))
        asked = self._aside.submit(self._told, "begin", told | {"line": line.name, "join": asdict(line)})
        try:
            self.carrier = Carrier(line, 0, device=device, meets=meets, lost=lambda: "refused" if asked.done() and asked.result() else None)
        except CarrierError as error:
            return asked.result() or Lost(reason="connection", detail=str(error))
        lost = asked.result()
        if lost is not None:
            self._leave()
        return lost

    def part(self, row: torch.Tensor, told: Mapping[str, Any]) -> Lost | None:
        """Some of them (`carrier.packed`)."""
        carrier = self.carrier
        if carrier is None:
            return Lost(reason="connection", detail="the group of this server is gone")
        asked = self._aside.submit(self._told, "part", told)
        since: list[float] = []

        def lost() -> str | None:
            """Whether the server waits for no bucket: it has refused it, or has gone."""
            if not asked.done():
                return None
            since.append(self._now())
            return "the server does not take it" if asked.result() is not None or since[-1] - since[0] > GRACE else None

        try:
            carrier.cast(row.to(carrier.device), lost)
        except CarrierError as error:
            self._leave()
            return asked.result() or Lost(reason="cut", detail=str(error))
        return asked.result()

    def reports(self) -> list[LoadReport] | Lost:
        """All are there: what has become of them, worker by worker."""
        reply = self.post("weights/end", body_message({"load": self.load}))
        if isinstance(reply, Lost):
            return reply
        reports = reply.get("reports")
        fields = LoadReport.__annotations__.keys()
        sound = isinstance(reports, list) and len(reports) == self.facts.get("ranks") and all(set(one) == fields for one in reports)
        if not sound:
            return Lost(reason="damaged", detail="it does not say where the weights went")
        lost = next((one["lost"] for one in reports if one["lost"]), None)  # pyright: ignore
        if lost is None:
            return reports  # pyright: ignore
        self._leave()
        return Lost(reason="cut", detail=lost)

    def commit(self, version: Version) -> Lost | None:
        """They may be used."""
        lost = self._told("commit", {"version": asdict(version)})
        self.held = version if lost is None else None
        if lost is None:
            self.worked()
            self.resume_at = 0.0
        return lost

    def _told(self, step: str, body: Mapping[str, Any]) -> Lost | None:
        reply = self.post(f"weights/{step}", body_message({"load": self.load, **body}))
        return reply if isinstance(reply, Lost) else None

    def _leave(self) -> None:
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.leave()

    def _require_allowed(self, status: int) -> None:
        if status == 401:
            given = "without a token" if self._token is None else "with another token than its own"
            raise ConfigError(f"{self.key}.token_file: the server at {self.address} was asked {given}")


def _cut(data: bytes) -> Iterator[bytes]:
    for place in range(0, len(data), _PIECE):
        yield data[place : place + _PIECE]


def _of(error: httpx.TransportError) -> Lost:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        reason = "connection"
    else:
        reason = "quiet" if isinstance(error, httpx.TimeoutException) else "cut"
    return Lost(reason=reason, detail=str(error)[:200] or type(error).__name__)


def _shown(raw: bytes | bytearray) -> str:
    text = bytes(raw[:1000]).decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]
