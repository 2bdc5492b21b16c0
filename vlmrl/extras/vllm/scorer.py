"""The servers of a teacher, from one rank of the trainer: each prompt with all its answers is scored by one of them.

The trainer shows its own ids and its own pixels (`inputs`). Every question names the teacher by the fingerprint of its files, so a server
that began anew with others answers none. A prompt whose server is lost goes to another one; with none for `patience` seconds the run ends
with exit code 69, and the same command goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.errors import ConfigError, EngineError, Preempted, RemoteError
from vlmrl.extras.vllm.answers import ASKED
from vlmrl.extras.vllm.identity import problem_of, read_by
from vlmrl.extras.vllm.inputs import EngineInputBuilder
from vlmrl.extras.vllm.remote import Lost, Remote
from vlmrl.extras.vllm.secret import read_token
from vlmrl.extras.vllm.wire import ScoreRequest
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import Pixels
from vlmrl.types import Prompt

KEY = "teacher"
AT_ONCE = 8
"""Prompts that one server is asked about at a time, by one rank."""
SLICE = 0.5
"""Seconds between two looks for a server that may be asked."""


Question = tuple[Prompt, Sequence[np.ndarray]]
"""A prompt as the teacher sees it, and of each answer int32 [T, K]: its own tokens first, and beside them the ids that are asked for."""


class Scorer:
    """Asks the servers. Its prompts may come from several threads."""

    def __init__(
        self,
        remotes: Sequence[Remote],
        policy: Policy,
        pixels: Pixels,
        *,
        patience: float,
        stop: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            policy: whose ids and pixels the servers have to read alike.
            pixels: of the teacher's prompts.
            stop: whether the run was asked to end; looked at while no server is there.
        """
        self.remotes = list(remotes)
        self.patience, self.now = patience, now
        self.fingerprint = ""
        """Of the teacher, once it is there."""
        # how vLLM counts positions is the teacher's affair: the trainer's own rule is not in its way
        self.inputs = EngineInputBuilder(policy.bundle, replace(policy.positions, rule="max"), pixels)
        self._reads = read_by(policy.bundle, timed=policy.positions.tokens_per_second is not None)
        self._stop = stop
        self._running = dict.fromkeys((remote.address for remote in remotes), 0)
        self._why: dict[str, Lost] = {}
        self._turn, self._pixels = threading.Lock(), threading.Lock()
        self._given_up = threading.Event()

    def close(self) -> None:
        """Give up the connections. The servers go on."""
        for remote in self.remotes:
            remote.close()

    def open(self) -> Mapping[str, Any]:
        """Meet the teacher, waited for if no server is there.

        Returns:
            What its first server says of itself.

        Raises:
            ConfigError: a server has no teacher, another one than the others, or one that reads ids or pixels otherwise.
            Preempted: the run was asked to end while it waited.
            RemoteError: no server came within the patience.
        """
        self._given_up.clear()
        began = self.now()
        while True:
            there = [remote for remote in self.remotes if self._is_there(remote)]
            for remote in there:
                self._require_fit(remote)
            if there:
                return there[0].facts
            self._wait(began)

    def score(self, questions: Sequence[Question], *, temperature: float, forbidden: Sequence[int]) -> list[list[np.ndarray]]:
        """Have the teacher score the answers to some prompts, each prompt at one server, several at a time.

        Returns:
            Log-probs of the ids of each question's answers, float32 [T, K], at this temperature and without the forbidden ids.

        Raises:
            ConfigError: a server has another teacher now, or no room for a prompt.
            EngineError: the servers refuse a prompt.
            Preempted, RemoteError: see `open`.
        """
        if not questions:
            return []
        self._given_up.clear()
        pool = ThreadPoolExecutor(min(len(questions), AT_ONCE * len(self.remotes)), thread_name_prefix="teacher")
        tasks = [pool.submit(self._scored, one, temperature, tuple(forbidden)) for one in questions]
        try:
            return [task.result() for task in tasks]
        finally:  # of a step that is lost nobody waits for the rest
            self._given_up.set()
            pool.shutdown(cancel_futures=True)

    # ---- one question --------------------------------------------------------------------------------------------------

    def _scored(self, question: Question, temperature: float, forbidden: tuple[int, ...]) -> list[np.ndarray]:
        prompt, ids = question
        placed = self.inputs.placed(prompt)
        ask = ScoreRequest(placed=placed, teacher=self.fingerprint, temperature=temperature, forbidden=forbidden)
        refused, began = 0, self.now()
        while True:
            remote = self._next()
            if remote is None:
                self._wait(began)
                continue
            self._require_room(remote, prompt, max(map(len, ids)))
            outcome = remote.score(ask, ids, lambda keys: self.patches(prompt, keys), stop=self._given_up.is_set)
            self._done(remote)
            if not isinstance(outcome, Lost):
                remote.worked()
                return outcome
            if outcome.reason == "stopped":
                raise RemoteError("the step was given up")
            if outcome.reason == "teacher":
                raise _another(remote)
            refused += outcome.reason == "refused"
            if refused >= ASKED:
                name = prompt.sample.id
                raise EngineError(f"{KEY}.servers: none scores the answers to '{name}', {remote.address} says: {outcome.detail}")
            self._why[remote.address] = outcome
            remote.failed()

    def _next(self) -> Remote | None:
        """The server that is asked the least, of those that may be asked; one that failed is looked at first."""
        away: set[str] = set()
        while True:
            with self._turn:
                due = [remote for remote in self.remotes if remote.is_due() and remote.address not in away]
                if not due:
                    return None
                remote = min(due, key=lambda one: self._running[one.address])
                self._running[remote.address] += 1
            if (remote.facts and not remote.failures) or self._is_there(remote):
                self._require_fit(remote)
                return remote
            self._done(remote)
            away.add(remote.address)

    def _done(self, remote: Remote) -> None:
        with self._turn:
            self._running[remote.address] -= 1

    def _is_there(self, remote: Remote) -> bool:
        lost = remote.health()
        if lost is None:
            remote.worked()
            return True
        self._why[remote.address] = lost
        remote.failed()
        return False

    def _wait(self, began: float) -> None:
        """Wait a little for a server.

        Raises:
            Preempted: the run was asked to end.
            RemoteError: there has been none for as long as the patience, or nobody waits for this any more.
        """
        silent = self.now() - max(began, *(remote.seen for remote in self.remotes))
        if silent > self.patience:
            whys = {remote.address: self._why.get(remote.address) for remote in self.remotes}
            told = "; ".join(f"{address}: {'away' if why is None else f'{why.reason}, {why.detail}'}" for address, why in whys.items())
            raise RemoteError(
                f"no server of the teacher for {self.patience:g} s ({KEY}.patience): {told}. Start them (vlmrl serve --teacher), and run "
                "the same command to go on"
            )
        if self._stop():
            raise Preempted("stopped by a signal while waiting for a server of the teacher; run the same command to go on")
        if self._given_up.wait(SLICE):
            raise RemoteError("the step was given up")

    def patches(self, prompt: Prompt, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Patches of a prompt's media, by key."""
        wanted = {handle.key: handle for handle in prompt.media if handle.key in keys}
        with self._pixels:
            return {key: self.inputs.patches(handle) for key, handle in wanted.items()}

    # ---- what a server must be -----------------------------------------------------------------------------------------

    def _require_fit(self, remote: Remote) -> None:
        told = remote.facts.get("teacher")
        where = f"{KEY}.servers: {remote.address}"
        if told is None:
            raise ConfigError(f"{where} has no teacher: its weights come from trainers; start it with vlmrl serve --teacher MODEL")
        if problem := problem_of(told, self._reads):
            raise ConfigError(f"{where}: {problem}")
        if self.fingerprint not in ("", told["fingerprint"]):
            raise _another(remote)
        self.fingerprint = told["fingerprint"]

    def _require_room(self, remote: Remote, prompt: Prompt, longest: int) -> None:
        needed, room = len(prompt.ids) + longest, int(remote.facts["max_model_len"])
        if needed > room:
            raise ConfigError(
                f"{KEY}.servers: {remote.address} has room for {room} tokens, and row '{prompt.sample.id}' with its answer needs "
                f"{needed}; start it with a larger --max-model-len, or show the teacher less (teacher.media)"
            )


def _another(remote: Remote) -> ConfigError:
    return ConfigError(
        f"{KEY}.servers: {remote.address} has another teacher than the run was begun with, or than the other servers have; start it with "
        "the same model (vlmrl serve --teacher) and dtype"
    )


def of_servers(
    addresses: Sequence[str],
    token: Path | None,
    policy: Policy,
    pixels: Pixels,
    *,
    patience: float,
    stop: Callable[[], bool],
) -> Scorer:
    """The servers of a recipe. `token`: their file.

    Raises:
        ConfigError: the token cannot be read, or the policy's processor is one whose pixels vLLM cannot be shown.
    """
    word = None if token is None else read_token(token.expanduser(), f"{KEY}.token_file")
    return Scorer([Remote(one, token=word, key=KEY) for one in addresses], policy, pixels, patience=patience, stop=stop)
