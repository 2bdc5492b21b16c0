"""What an answer of vLLM must be before it becomes a rollout, wherever vLLM runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vlmrl.errors import ConfigError, EngineError, NumericsError
from vlmrl.policy.model import ProcessorBundle
from vlmrl.rollout.vllm.inputs import Answer
from vlmrl.types import GenerationSettings, Request, Rollout

ASKED = 3
"""Most times that an answer is asked for before its loss is an error."""


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


def why_lost(answer: Answer, settings: GenerationSettings) -> str | None:
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


def rollout_of(answer: Answer, request: Request, number: int, bundle: ProcessorBundle, *, version: int) -> Rollout:
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
