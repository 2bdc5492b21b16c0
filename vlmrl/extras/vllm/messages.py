"""What trainer and rollout server say to each other: prompts to answer, answers, and the version of the weights, as messages of `wire`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from vlmrl.extras.vllm.inputs import Completion, Placed, PlacedMedium, Version
from vlmrl.extras.vllm.wire import Message, WireError, digest, encode
from vlmrl.types import GenerationSettings

PREFIX = "/v1/"
TYPE = "application/x-vlmrl"
"""Content type of messages. A page in a browser cannot send it without asking first, and is never answered."""
BEAT = b"."
"""Sent in front of a reply while it is being made: the server lives, and its engine gets on."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One prompt to answer, once for each seed."""

    placed: Placed
    version: Version
    """Of the weights that are to answer."""
    settings: GenerationSettings
    seeds: tuple[int, ...]
    ends: tuple[int, ...]
    forbidden: tuple[int, ...]
    patches: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """uint8, by key of the medium: those that the server may not have yet."""


def ask_message(ask: GenerateRequest) -> list[memoryview]:
    """The pieces of a question."""
    body = {
        "version": asdict(ask.version),
        "settings": asdict(ask.settings),
        "seeds": list(ask.seeds),
        "ends": list(ask.ends),
        "forbidden": list(ask.forbidden),
        "merge": ask.placed.merge,
        "media": [asdict(medium) for medium in ask.placed.media],
    }
    ids = torch.tensor(ask.placed.ids, dtype=torch.int64)
    return encode(body, [("ids", ids), *((f"patches.{key}", torch.from_numpy(of)) for key, of in ask.patches.items())])


def ask_from(message: Message) -> GenerateRequest:
    """
    Raises:
        WireError: it is no question.
    """
    try:
        body, tensors = message.body, message.tensors
        ids = tensors["ids"]
        patches = {name.removeprefix("patches."): tensor.numpy() for name, tensor in tensors.items() if name.startswith("patches.")}
        if ids.dtype != torch.int64 or ids.ndim != 1 or any(of.dtype != np.uint8 or of.ndim != 2 for of in patches.values()):
            raise WireError("ids must be one row of int64, and patches rows of bytes")
        media = tuple(_medium(one) for one in body["media"])
        length = len(ids)
        if any(not 0 <= one.start < one.end <= length for one in media):
            raise WireError("a medium stands outside of its prompt")
        if not body["seeds"]:
            raise WireError("no answer is asked for")
        return GenerateRequest(
            placed=Placed(ids=tuple(ids.tolist()), media=media, merge=int(body["merge"])),
            version=version_from(body["version"]),
            settings=GenerationSettings(
                max_new_tokens=int(body["settings"]["max_new_tokens"]),
                temperature=float(body["settings"]["temperature"]),
                top_p=float(body["settings"]["top_p"]),
            ),
            seeds=_whole(body["seeds"]),
            ends=_whole(body["ends"]),
            forbidden=_whole(body["forbidden"]),
            patches=patches,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, WireError) else WireError(f"no question: {error!r}"[:200]) from error


def _medium(given: Any) -> PlacedMedium:
    grid, shown, seconds = _whole(given["grid"]), given["shown"], given["seconds"]
    if given["kind"] not in ("image", "video") or len(grid) != 3 or min(grid) < 1 or not isinstance(given["key"], str):
        raise WireError("a medium is not described as one")
    start, end = _whole([given["start"], given["end"]])
    ranges = None if shown is None else tuple((a, b) for a, b in (_whole(one) for one in shown))
    if ranges is not None and any(not start <= a < b <= end for a, b in ranges):
        raise WireError("placeholders stand outside of their medium")
    return PlacedMedium(
        kind=given["kind"],
        key=given["key"],
        grid=(grid[0], grid[1], grid[2]),
        start=start,
        end=end,
        shown=ranges,
        seconds=None if seconds is None else float(seconds),
    )


def _whole(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or any(type(one) is not int for one in given):
        raise WireError("whole numbers are expected")
    return tuple(given)


def version_from(given: Any) -> Version:
    """
    Raises:
        WireError: it is no version.
    """
    try:
        policy, vision, whole = _whole([given["policy"], given["vision"], given["whole"]])
    except (KeyError, TypeError) as error:
        raise WireError("no version of weights") from error
    return Version(policy=policy, vision=vision, whole=whole)


def answers_message(version: Version, answers: Sequence[Completion]) -> list[memoryview]:
    """The pieces of a reply. Of the prompt only the hash goes back."""
    told = [{"reason": one.reason, "cached": one.cached, "prompt": digest(one.prompt_ids)} for one in answers]
    tensors = [
        item
        for n, one in enumerate(answers)
        for item in (
            (f"ids.{n}", torch.tensor(one.ids, dtype=torch.int64)),
            (f"logprobs.{n}", torch.tensor(one.logprobs, dtype=torch.float64)),
        )
    ]
    return encode({"version": asdict(version), "answers": told}, tensors)


def answers_from(message: Message, ids: tuple[int, ...]) -> tuple[Version, list[Completion]]:
    """The version that answered, and its answers to the prompt `ids`.

    Raises:
        WireError: it is no reply.
    """
    try:
        wanted, out = digest(ids), list[Completion]()
        for n, told in enumerate(message.body["answers"]):
            own, logprobs = message.tensors[f"ids.{n}"], message.tensors[f"logprobs.{n}"]
            if own.dtype != torch.int64 or logprobs.dtype != torch.float64 or own.ndim != 1 or logprobs.ndim != 1:
                raise WireError("an answer is one row of ids and one of log-probs")
            out.append(
                Completion(
                    ids=tuple(own.tolist()),
                    logprobs=tuple(logprobs.tolist()),
                    reason=str(told["reason"]),
                    cached=int(told["cached"]),
                    prompt_ids=ids if told["prompt"] == wanted else (),
                )
            )
        return version_from(message.body["version"]), out
    except (KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, WireError) else WireError(f"no reply: {error!r}"[:200]) from error
