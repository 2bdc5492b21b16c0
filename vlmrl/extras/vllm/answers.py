"""What an answer of vLLM must be before it becomes a rollout, and what is counted of the work, wherever vLLM runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlmrl.errors import ConfigError, EngineError, NumericsError
from vlmrl.extras.vllm.inputs import Completion
from vlmrl.extras.vllm.routes import written
from vlmrl.extras.vllm.sync import SyncReport
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import GenerationSettings, Request, Rollout

Done = Callable[[int, list[Rollout]], None]

ASKED = 3
"""Most times that an answer is asked for before its loss is an error."""


class Counted:
    """What an engine counts of its work, and what of it is logged."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.asked_again = 0
        self.synced_bytes = 0
        self.sync_seconds = 0.0
        self.last_sync: SyncReport | None = None

    @property
    def counts(self) -> Mapping[str, Callable[[], float]]:
        """Running counts by the names that they are logged under."""
        return {
            "work/prefilled_tokens": lambda: self.prompt_tokens - self.cached_tokens,
            "work/prefix_cached_tokens": lambda: self.cached_tokens,
            "work/asked_again": lambda: self.asked_again,
            "work/synced_bytes": lambda: self.synced_bytes,
            "time/sync": lambda: self.sync_seconds,
        }

    def count_sync(self, report: SyncReport) -> None:
        """Weights were sent."""
        self.last_sync = report
        self.synced_bytes += report.nbytes
        self.sync_seconds += report.seconds


class CompletionCollector:
    """The answers to some requests, as they come in."""

    def __init__(
        self,
        requests: Sequence[Request],
        settings: GenerationSettings,
        bundle: ProcessorBundle,
        counted: Counted,
        *,
        version: int,
        done: Done | None,
        subject: Any = None,
    ):
        """
        Args:
            version: of the policy that answers.
            done: called with a request's number and rollouts as soon as its last answer is there.
            subject: of the policy, where answers bring experts (`routes.written`).
        """
        self._requests, self._settings, self._bundle = requests, settings, bundle
        self._counted, self._version, self._done, self._subject = counted, version, done, subject
        self._rollouts: list[dict[int, Rollout]] = [{} for _ in requests]
        self._lost: dict[tuple[int, int], int] = {}
        self.open = sum(len(request.seeds) for request in requests)
        """Answers that are not there."""

    def take(self, number: int, k: int, answer: Completion) -> bool:
        """Answer `k` to a request. False where it is none (`why_lost`), and has to be asked for again.

        Raises:
            EngineError: it was lost too often, belongs to another prompt, holds tokens that must not be drawn, or lacks experts that were
                asked for.
            NumericsError: log-probs are not finite.
        """
        request, own = self._requests[number], self._rollouts[number]
        self._counted.prompt_tokens += len(request.prompt.ids)
        self._counted.cached_tokens += answer.cached
        why = why_lost(answer, self._settings)
        if why is not None:
            self._lost[number, k] = self._lost.get((number, k), 0) + 1
            if self._lost[number, k] >= ASKED:
                raise given_up(request, why)
            self._counted.asked_again += 1
            return False
        taken = written(answer, request.prompt, self._subject) if self._settings.routes else ()
        own[k] = replace(rollout_of(answer, request, k, self._bundle, version=self._version), routes=taken)
        self.open -= 1
        if self.whole(number) and self._done is not None:
            self._done(number, self._in_order(number))
        return True

    def whole(self, number: int) -> bool:
        """Whether a request has all its answers."""
        return len(self._rollouts[number]) == len(self._requests[number].seeds)

    def rollouts(self) -> list[list[Rollout]]:
        """All of them, in the order of requests and seeds."""
        return [self._in_order(number) for number in range(len(self._requests))]

    def _in_order(self, number: int) -> list[Rollout]:
        own = self._rollouts[number]
        return [own[k] for k in range(len(own))]


def require_room(requests: Sequence[Request], settings: GenerationSettings, most: int) -> None:
    """
    Raises:
        ConfigError: a prompt with its answer is longer than the engine was started for.
    """
    longest = max((len(request.prompt.ids) for request in requests), default=0)
    if longest + settings.max_new_tokens > most:
        raise ConfigError(
            f"rollout.vllm.max_model_len ({most}): a prompt of {longest} tokens with max_new_tokens {settings.max_new_tokens} does not "
            "fit; raise it, or lower data.max_prompt_tokens"
        )


def why_lost(answer: Completion, settings: GenerationSettings) -> str | None:
    """Why this is no answer: ended by the engine, or cut off before its end. None: it is one."""
    if answer.reason not in ("stop", "length") or not answer.ids:
        return f"ended as '{answer.reason}'"
    if answer.reason == "length" and len(answer.ids) < settings.max_new_tokens:
        return f"truncated after {len(answer.ids)} of {settings.max_new_tokens} tokens"
    if len(answer.logprobs) != len(answer.ids):
        return f"{len(answer.ids)} tokens came with {len(answer.logprobs)} log-probs"
    return None


def given_up(request: Request, why: str) -> EngineError:
    """An answer was lost too often."""
    return EngineError(f"vLLM gave no answer to '{request.prompt.sample.id}', asked {ASKED} times: {why}")


def rollout_of(answer: Completion, request: Request, number: int, bundle: ProcessorBundle, *, version: int) -> Rollout:
    """The rollout of an answer that is one (`why_lost`).

    Raises:
        EngineError: it belongs to another prompt, or holds tokens that must not be drawn.
        NumericsError: log-probs are not finite.
    """
    where = f"an answer to '{request.prompt.sample.id}'"
    if answer.prompt_ids != request.prompt.ids:
        raise EngineError(
            f"vLLM changed the prompt of {where}: {len(request.prompt.ids)} tokens went in, {len(answer.prompt_ids)} came out"
        )
    if not all(map(math.isfinite, answer.logprobs)):
        raise NumericsError(f"log-probs not finite: {where}")
    forbidden = sorted(set(answer.ids).intersection(bundle.forbidden_ids))
    if forbidden:
        raise EngineError(f"vLLM drew control tokens {forbidden} in {where}, which it was told not to draw")
    return Rollout(
        k=request.ks[number],
        ids=answer.ids,
        logprobs=answer.logprobs,
        text=bundle.decode(answer.ids),
        finish="stop" if answer.ids[-1] in bundle.end_ids else "length",
        policy_version=version,
    )
