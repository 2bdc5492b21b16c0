"""The servers of a run, and how they get its weights.

Rank 0 sends. Every rank gathers the tensors with it, in the same order, and keeps none. They go to all servers at once, bucket by bucket,
to each over a group of its own (`carrier`); one that is lost on the way is left behind and is sent everything at the next synchronisation
that it is back for. Each worker of a server has the same questions to answer as an engine in this process (`sync`): did every tensor reach
a parameter and every parameter get one, and are the bits those that were sent. Only then is the server told its version, and without that
version it answers nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from vlmrl.errors import ConfigError, EngineError, Preempted, RemoteError
from vlmrl.extras.vllm.carrier import Kind, packed
from vlmrl.extras.vllm.inputs import Version
from vlmrl.extras.vllm.remote import Lost, Remote
from vlmrl.extras.vllm.sync import Sent, SyncReport, buckets, check

T = TypeVar("T")

BUCKET_BYTES = 2**28
SLICE = 1.0
"""Seconds between two looks at servers that are away."""


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a server must be to answer for a policy."""

    architecture: str
    dtype: str
    length: int
    """Tokens of the longest prompt with its answer."""
    processor: str | None = None
    """Fingerprint of the family's own processor, where media are what it makes of them."""
    routers: int | None = None
    """Layers whose routers' choices come with answers; None: none need to come."""


class Fleet:
    """The servers, from one rank."""

    def __init__(
        self,
        remotes: Sequence[Remote],
        needed: Needed,
        *,
        patience: float,
        stop: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """
        Args:
            patience: seconds for which no server may be there.
            stop: whether the run was asked to end; looked at while no server is there.
        """
        self.remotes = list(remotes)
        self.needed = needed
        self.patience = patience
        self._stop = stop
        self.now, self.sleep = now, sleep
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(remotes)), thread_name_prefix="servers")
        self._sending: Sending | None = None

    def close(self) -> None:
        """Give up the connections."""
        self._pool.shutdown()
        for remote in self.remotes:
            remote.close()

    def all(self, task: Callable[[Remote], T], remotes: Sequence[Remote]) -> list[T]:
        """Do something with several servers at the same time."""
        return list(self._pool.map(task, remotes))

    def greet(self) -> list[Remote]:
        """The servers that are there, waited for if there is none.

        Raises:
            ConfigError: one is not what the run needs.
            Preempted: the run was asked to end while it waited.
            RemoteError: none came within the patience.
        """
        began = self.now()
        while True:
            answers = self.all(Remote.health, self.remotes)
            there = [remote for remote, lost in zip(self.remotes, answers, strict=True) if lost is None]
            for remote in there:
                self._require_fit(remote)
            if there:
                return there
            if self.now() - began > self.patience:
                raise self.nobody(answers)
            self.check_stop()
            self.sleep(SLICE)

    def check_stop(self) -> None:
        """For where nothing goes on for want of a server.

        Raises:
            Preempted: the run was asked to end.
        """
        if self._stop():
            raise Preempted("stopped by a signal while waiting for a rollout server; run the same command to go on")

    def nobody(self, why: Sequence[Lost | None]) -> RemoteError:
        """No server is left."""
        told = "; ".join(
            f"{remote.address}: {'it is away' if lost is None else f'{lost.reason}, {lost.detail}'}"
            for remote, lost in zip(self.remotes, why, strict=True)
        )
        return RemoteError(
            f"no rollout server for {self.patience:g} s (rollout.vllm.patience): {told}. Start them (vlmrl serve --rollouts), and run the "
            "same command to go on; what was sampled is in the journal"
        )

    def _require_fit(self, remote: Remote) -> None:
        facts, n = remote.facts, self.needed
        if facts.get("teacher") is not None:
            raise ConfigError(
                f"rollout.vllm.servers: {remote.address} is a teacher's server, whose weights stay; name it in teacher.servers"
            )
        for name, wanted in (("architecture", n.architecture), ("dtype", n.dtype), ("processor", n.processor)):
            if facts.get(name) != wanted:
                raise ConfigError(
                    f"rollout.vllm.servers: {remote.address} runs {name} '{facts.get(name)}', and the run trains '{wanted}'; start it with "
                    "the recipe of the run"
                )
        if n.routers is not None and facts.get("routers") != n.routers:
            raise ConfigError(
                f"rollout.vllm.servers: {remote.address} sees the routers of {facts.get('routers') or 'no'} layers, and the run replays "
                f"those of {n.routers}; start it with the recipe of the run (rollout.router_replay)"
            )
        room = facts.get("max_model_len")
        if not isinstance(room, int) or room < n.length:
            raise ConfigError(
                f"rollout.vllm.servers: {remote.address} has room for {room} tokens, and the run needs {n.length}; start it with the "
                "recipe of the run, or with a larger rollout.vllm.max_model_len"
            )

    # ---- weights, on rank 0 --------------------------------------------------------------------------------------------

    def open(self, version: Version, *, tower_trains: bool, device: torch.device) -> bool:
        """Get ready to send: whether all weights have to go, or those outside a tower that is there already.

        Args:
            device: of the tensors that are sent.

        Raises:
            ConfigError, Preempted, RemoteError: see `greet`.
        """
        there = self.greet()
        whole = any(
            remote.held is None or remote.held.whole != version.whole or (remote.held.vision != version.vision and not tower_trains)
            for remote in there
        )
        self._sending = Sending(self, there, version, whole=whole, language_only=not (whole or tower_trains), device=device)
        return whole

    @property
    def sending(self) -> Sending:
        """What `open` began."""
        assert self._sending is not None
        return self._sending


class Sending:
    """One version of the weights on its way to several servers."""

    def __init__(
        self, fleet: Fleet, remotes: Sequence[Remote], version: Version, *, whole: bool, language_only: bool, device: torch.device
    ):
        self.fleet, self.version, self.whole = fleet, version, whole
        self.load = secrets.token_hex(8)
        self.lost: dict[str, Lost] = {}
        self.sent = Sent()
        self._began = time.perf_counter()
        self.remotes = list(remotes)
        self._each(lambda remote: remote.begin(self.load, language_only=language_only, device=device))

    def stream(self, outgoing: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype) -> None:
        """Send all tensors. Whatever becomes of the servers, all are taken: other ranks gather with this one."""
        for bucket in buckets(self.sent.noted(outgoing, dtype), BUCKET_BYTES):
            if self.remotes:
                row, told = packed(bucket)
                self._each(lambda remote, row=row, told=told: remote.part(row, told))

    def settle(self) -> SyncReport | None:
        """Have the servers put the weights in place, and look whether they did; None when no server is left.

        Raises:
            EngineError: one holds other weights than those that were sent.
        """
        compared = sum(self.fleet.all(self._settled, list(self.remotes)))
        if not self.remotes:
            return None
        return SyncReport(
            version=self.version,
            tensors=len(self.sent.sums),
            nbytes=self.sent.nbytes,
            compared=compared,
            seconds=time.perf_counter() - self._began,
            whole=self.whole,
        )

    def _settled(self, remote: Remote) -> int:
        reports = remote.reports()
        if isinstance(reports, Lost):
            self._drop(remote, reports)
            return 0
        try:
            compared = check(reports, self.sent)
        except EngineError as error:
            raise EngineError(f"{remote.address}: {error}") from error
        lost = remote.commit(self.version)
        if lost is not None:
            self._drop(remote, lost)
        return compared

    def _each(self, task: Callable[[Remote], Lost | None]) -> None:
        for remote, lost in zip(list(self.remotes), self.fleet.all(task, list(self.remotes)), strict=True):
            if lost is not None:
                self._drop(remote, lost)

    def _drop(self, remote: Remote, lost: Lost) -> None:
        self.lost[remote.address] = lost
        remote.held = None
        remote.failed()
        self.remotes.remove(remote)


def connect(addresses: Sequence[str], *, token: str | None, kind: Kind | None = None) -> list[Remote]:
    """The servers of a recipe. `kind`: of the groups that weights go over; None: by the devices."""
    return list(map(partial(Remote, token=token, kind=kind), addresses))
