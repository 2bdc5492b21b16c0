"""vLLM on other machines or devices as the rollout engine: requests are spread over servers, and weights are sent to them.

A prompt with all its answers goes to one server, which computes the prompt once. What comes back is a value: answers, or why there are
none. The line was cut, the server said nothing for seconds, it holds other weights, an answer ended early: each is asked again elsewhere
with its own seed, so the answer is the one that was asked for (up to the rounding of batched kernels). In a session the turns of a
conversation go to the server that has read what was before, as long as it is there and has room. A server that fails is left alone
for a while and asked again only once it says that it holds the weights. With no server left for `patience` seconds the run ends with exit
code 69, and its journal is kept.

The engine has weights of its own: it answers with the version of the last `sync`, also while the policy is trained.
"""

from __future__ import annotations

import math
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from vlmrl.errors import EngineError, RemoteError
from vlmrl.extras.vllm.answers import ASKED, CompletionCollector, Counted, Done, given_up, require_room
from vlmrl.extras.vllm.argued import ArguedMedia
from vlmrl.extras.vllm.fleet import Fleet
from vlmrl.extras.vllm.inputs import Completion, EngineInputBuilder, Version
from vlmrl.extras.vllm.remote import Lost, Remote
from vlmrl.extras.vllm.sync import SyncReport, weights
from vlmrl.extras.vllm.wire import GenerateRequest
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import Pixels
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

T = TypeVar("T")

SLICE = 0.5
"""Seconds between two looks at what cannot be waited for."""
TRIES = 10
"""Most times that a prompt may lose its server."""
MOST_THREADS = 64
"""Prompts that one server is asked for at a time, by one rank."""
STALE_PAUSE = 2.0
SILENT = 5.0
"""Seconds without a word of any server after which a run that was asked to stop waits no more. One at work speaks each second."""


class RunRanks(Protocol):
    """The ranks of a run."""

    @property
    def lead(self) -> bool:
        """Whether this is the rank that sends."""
        ...

    def on_lead(self, fn: Callable[[], T]) -> T:
        """What `fn` returns on the rank that sends, on every rank; its failure is every rank's failure."""
        ...


class Alone:
    """The only rank."""

    lead = True

    def on_lead(self, fn: Callable[[], T]) -> T:
        return fn()


class RemoteVllmEngine(Counted):
    """Generates on rollout servers. The weights are the policy's after `sync`."""

    beside_training = True

    def __init__(
        self, fleet: Fleet, policy: Policy, pixels: Pixels, *, together: RunRanks | None = None, at_once: int = 256, clips: str = ""
    ):
        """
        Args:
            at_once: answers that one server may be asked for at a time, by one rank.
            clips: why videos are not taken; nothing where they are.
        """
        super().__init__()
        self.fleet, self.policy = fleet, policy
        self.together = together or Alone()
        self.at_once = at_once
        self.inputs: EngineInputBuilder | ArguedMedia = (
            EngineInputBuilder(policy.bundle, policy.positions, pixels)
            if policy.bundle.writer is None
            else ArguedMedia(policy.bundle.pad_ids, pixels, clips=clips)
        )
        self.held: Version | None = None
        """Version that the servers answer with."""
        self._whole: int | None = None
        self._pixels = threading.Lock()

    @property
    def version(self) -> int:
        return -1 if self.held is None else self.held.policy

    def close(self) -> None:
        """Give up the connections. The servers go on."""
        self.fleet.close()

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Context of `generate`: the servers hold the policy's weights. Every rank enters it."""
        self.sync()
        yield

    def probes(self, temperature: float) -> list[tuple[Prompt, Rollout]]:
        """None: ranks would look at different ones. The gap of every step's own answers is measured (`sampling/logp_gap`)."""
        del temperature
        return []

    def sync(self) -> SyncReport | None:
        """Send the weights if they are not those that the servers hold. Every rank calls it.

        Raises:
            ConfigError: a server is not what the run needs.
            EngineError: a server does not hold them afterwards.
            Preempted: the run was asked to stop while no server was there.
            RemoteError: no server is there.
        """
        p, held = self.policy, self.held
        if held is not None and (held.policy, held.vision) == (p.version, p.vision_version):
            return None
        if self._whole is None:  # of this engine and no other, so that no features or keys of an earlier run are found
            self._whole = self.together.on_lead(lambda: secrets.randbits(62))
        version = Version(policy=p.version, vision=p.vision_version, whole=self._whole)
        self.held, report = None, None
        while report is None:
            report = self._send(version)
        self.held = version
        self.count_sync(report)
        return report

    def _send(self, version: Version) -> SyncReport | None:
        """Once through all tensors; None when every server was lost on the way."""
        p, fleet = self.policy, self.fleet
        tower = p.vision_trains or p.subject is not None  # as of `sync.Sync`
        whole = self.together.on_lead(lambda: fleet.open(version, tower_trains=tower, device=p.device))
        outgoing = weights(p, tower=whole or tower)
        if self.together.lead:
            fleet.sending.stream(outgoing, p.compute)
        else:
            for _ in outgoing:
                pass
        return self.together.on_lead(lambda: fleet.sending.settle())

    @contextmanager
    def session(self) -> Iterator[RemoteSession]:
        """Turns of conversations, each where its past was read."""
        yield RemoteSession(self)

    def generate(
        self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None = None, homes: dict[int, str] | None = None
    ) -> list[list[Rollout]]:
        """Rollouts of every request, in order. `done` is called with a request's number and rollouts as soon as its last answer has ended.
        `homes`: of the session that asks, conversation -> the server of its last turn.

        Raises:
            ConfigError: a prompt with its answer is longer than the servers were started for.
            EngineError: the servers hold no weights, or an answer was lost again and again.
            NumericsError: log-probs are not finite.
            Preempted: the run was asked to stop while no server was left.
            RemoteError: no server is left.
        """
        if self.held is None:
            raise EngineError("the servers hold no weights of this policy: call `sync` first")
        require_room(requests, settings, self.fleet.needed.length)
        return _Round(self, self.held, requests, settings, done, {} if homes is None else homes).loop()

    def patches(self, prompt: Prompt, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Patches of a prompt's media, by key."""
        wanted = {handle.key: handle for handle in prompt.media if handle.key in keys}
        with self._pixels:
            return {key: self.inputs.patches(handle) for key, handle in wanted.items()}


class RemoteSession:
    """Conversations with servers (`protocols.MultiTurnSession`).

    A server's prefix cache holds what it has read, so a conversation stays with it.
    """

    def __init__(self, engine: RemoteVllmEngine):
        self.engine = engine
        self.homes: dict[int, str] = {}
        """Conversation -> address of the server of its last turn."""

    def generate(self, requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        """The next turns."""
        return self.engine.generate(requests, settings, homes=self.homes)

    def forget(self, conversations: Iterable[int]) -> None:
        """These are over. The servers' caches forget what they need the room of."""
        for number in conversations:
            self.homes.pop(number, None)


@dataclass(kw_only=True)
class _Job:
    """Answers to one prompt that a server is asked for together."""

    number: int
    """Of the request."""
    answers: list[int]
    """Places of the seeds."""
    lost: int = 0
    """Servers that it has lost."""
    avoid: str = ""
    """Server that had it last."""
    home: str = ""
    """Server that has read the turns before."""


class _Round:
    """One call of `generate`."""

    def __init__(
        self,
        engine: RemoteVllmEngine,
        version: Version,
        requests: Sequence[Request],
        settings: GenerationSettings,
        done: Done | None,
        homes: dict[int, str],
    ):
        self.engine, self.version, self.requests, self.settings, self.homes = engine, version, requests, settings, homes
        self.fleet, self.bundle = engine.fleet, engine.policy.bundle
        more = {"version": version.policy, "done": done, "subject": engine.policy.subject}
        self.collected = CompletionCollector(requests, settings, self.bundle, engine, **more)
        order = sorted(range(len(requests)), key=lambda i: (-requests[i].expected_tokens, i))
        self._jobs = [
            _Job(number=n, answers=list(range(len(requests[n].seeds))), home=self._home(requests[n])) for n in order if requests[n].seeds
        ]
        most = max((len(request.seeds) for request in requests), default=1)
        self._width = min(max(1, engine.at_once // max(1, most)), max(1, len(requests)), MOST_THREADS)
        """Prompts that a server is asked for at a time."""
        self._running: dict[str, int] = {remote.address: 0 for remote in self.fleet.remotes}
        self._stale: set[str] = set()
        """Servers that answer and hold other weights."""
        self._why: dict[str, Lost] = {}
        self._turn = threading.Condition()
        self._probing = {remote.address: threading.Lock() for remote in self.fleet.remotes}
        self._results: queue.SimpleQueue[tuple[_Job, Remote, list[Completion] | Lost]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._began = self.fleet.now()

    def loop(self) -> list[list[Rollout]]:
        if not self.collected.open:
            return self.collected.rollouts()
        pool = ThreadPoolExecutor(max_workers=self._width * len(self.fleet.remotes), thread_name_prefix="asking")
        working = [pool.submit(self._work, remote) for _ in range(self._width) for remote in self.fleet.remotes]
        try:
            while self.collected.open:
                try:
                    self._take(*self._results.get(timeout=SLICE))
                except queue.Empty:
                    self._look(working)
        finally:
            self._stop.set()
            with self._turn:
                self._turn.notify_all()
            pool.shutdown()
        return self.collected.rollouts()

    # ---- the caller's thread -------------------------------------------------------------------------------------------

    def _take(self, job: _Job, remote: Remote, outcome: list[Completion] | Lost) -> None:
        request = self.requests[job.number]
        if isinstance(outcome, Lost):
            self._why[remote.address] = outcome
            if outcome.reason == "refused" and job.lost + 1 >= ASKED:
                raise given_up(request, f"{remote.address} does not take it: {outcome.detail}")
            if job.lost + 1 >= TRIES:
                told = f"{remote.address}: {outcome.reason}, {outcome.detail}"
                raise RemoteError(f"'{request.prompt.sample.id}' lost its rollout server {TRIES} times, at last {told}")
            self.engine.asked_again += len(job.answers)
            self._again(job, job.answers, remote, lost=job.lost + 1)
            return
        self.homes.update(dict.fromkeys(request.talkers(), remote.address))
        again = [k for k, answer in zip(job.answers, outcome, strict=True) if not self.collected.take(job.number, k, answer)]
        if again:
            self._again(job, again, remote, lost=job.lost)

    def _again(self, job: _Job, answers: list[int], remote: Remote, *, lost: int) -> None:
        with self._turn:
            self._jobs.insert(0, _Job(number=job.number, answers=answers, lost=lost, avoid=remote.address))
            self._turn.notify_all()

    def _look(self, working: Sequence[Future[None]]) -> None:
        """While nothing comes in.

        Raises:
            Preempted: the run was asked to stop while no server was left.
            RemoteError: no server is left.
        """
        for future in working:
            if future.done():
                future.result()
        remotes = self.fleet.remotes
        left = [remote for remote in remotes if remote.address not in self._stale]
        if not left:
            raise RemoteError(
                f"no rollout server holds the weights of step {self.version.policy} any more "
                f"({', '.join(remote.address for remote in remotes)} began anew, or another trainer uses them); run the same command to go "
                "on; what was sampled is in the journal"
            )
        silent = self.fleet.now() - max(self._began, *(remote.seen for remote in left))
        if silent > self.fleet.patience:
            raise self.fleet.nobody([self._why.get(remote.address) for remote in remotes])
        if silent > SILENT:
            self.fleet.check_stop()

    # ---- a server's threads --------------------------------------------------------------------------------------------

    def _work(self, remote: Remote) -> None:
        while not self._stop.is_set():
            if not self._usable(remote):
                self._stop.wait(SLICE)
                continue
            job = self._next(remote)
            if job is None:
                continue
            outcome = self._asked(remote, job)
            if not isinstance(outcome, Lost):
                remote.worked()
            elif outcome.reason != "stopped":
                if outcome.reason == "version":
                    remote.held = None  # until it says so again
                remote.failed()
            with self._turn:
                self._running[remote.address] -= 1
                self._turn.notify_all()
            self._results.put((job, remote, outcome))

    def _asked(self, remote: Remote, job: _Job) -> list[Completion] | Lost:
        request = self.requests[job.number]
        ask = GenerateRequest(
            placed=self.engine.inputs.placed(request.prompt),
            version=self.version,
            settings=self.settings,
            seeds=tuple(request.seeds[k] for k in job.answers),
            ends=tuple(self.bundle.end_ids),
            forbidden=tuple(self.bundle.forbidden_ids),
        )
        return remote.ask(ask, lambda keys: self.engine.patches(request.prompt, keys), stop=self._stop.is_set)

    def _usable(self, remote: Remote) -> bool:
        """Whether a server may be asked, as far as can be known. One that failed, or is unknown, is looked at first."""
        if not remote.is_due():
            return False
        if remote.held == self.version and not remote.failures:
            return True
        lock = self._probing[remote.address]
        if not lock.acquire(blocking=False):
            return False
        try:
            lost = remote.health()
            if lost is not None:
                self._why[remote.address] = lost
                remote.failed()
                return False
            if remote.held == self.version:
                self._stale.discard(remote.address)
                return True
            self._stale.add(remote.address)
            remote.resume_at = self.fleet.now() + STALE_PAUSE
            return False
        finally:
            lock.release()

    def _next(self, remote: Remote) -> _Job | None:
        """The next job for a server, which gets no more than its share of what is open."""
        with self._turn:
            others = [
                other
                for other in self.fleet.remotes
                if other is not remote and other.address not in self._stale and not other.failures and other.is_due()
            ]
            share = math.ceil((len(self._jobs) + sum(self._running.values())) / (1 + len(others)))
            place = self._chosen(remote, share, [other.address for other in others]) if self._running[remote.address] < share else None
            if place is None:
                self._turn.wait(SLICE)
                return None
            self._running[remote.address] += 1
            self._turn.notify_all()  # what this server has no room for is another's
            return self._jobs.pop(place)

    def _chosen(self, remote: Remote, share: int, others: Sequence[str]) -> int | None:
        """The place of the job that a server takes: one whose past it has read, else one without a past, else one whose own server is
        lost or has as much as it takes."""
        room = {address for address in others if self._running[address] < min(share, self._width)}
        mine = [n for n, job in enumerate(self._jobs) if (job.avoid != remote.address or not others) and job.home not in room]
        return min(mine, key=lambda n: (self._jobs[n].home != remote.address, self._jobs[n].home != "", n), default=None)

    def _home(self, request: Request) -> str:
        """The server of the last turn of a request's conversations; nothing where there was none."""
        return next((self.homes[number] for number in request.talkers() if number in self.homes), "")
