"""Messages between the trainer and rollout servers: JSON, and pixels as safetensors. Nothing in them can become code.

A prompt comes as one file of safetensors: its description under `ask`, as the bytes of JSON, and patches under the keys of their media. All
else is JSON. Neither side needs the other's packages, and what is received is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save

from vlmrl.errors import VlmrlError
from vlmrl.extras.vllm.inputs import Completion, Placed, Version
from vlmrl.types import GenerationSettings
from vlmrl.web.guard import read_json

PREFIX = "/vlmrl/"
TYPE = "application/x-vlmrl"
"""Content type of messages. A page in a browser cannot send it without asking first, and is never answered."""
BEAT = b" "
"""Sent in front of a reply while it is being made: the server lives, and its engine gets on. JSON may begin with it."""
_PATCHES = "patches."


class WireError(ValueError):
    """These bytes are no message."""


class RefusalError(VlmrlError):
    """A question or weights are not taken. `reason` is a short code: `version`, `load`, `line`, `refused`, `ended`."""

    def __init__(self, reason: str, detail: str):
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


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


_ASK = TypeAdapter(GenerateRequest)
_VERSION = TypeAdapter(Version)


def ask_message(ask: GenerateRequest, patches: Mapping[str, np.ndarray]) -> bytes:
    """A question. `patches`: uint8 [patches, dim] by key of the medium, those that the server may not have yet."""
    told = {_PATCHES + key: torch.from_numpy(np.ascontiguousarray(of)) for key, of in patches.items()}
    return save({"ask": torch.frombuffer(bytearray(_ASK.dump_json(ask)), dtype=torch.uint8), **told})


def ask_from(data: bytes) -> tuple[GenerateRequest, dict[str, np.ndarray]]:
    """A question, and the patches that came with it.

    Raises:
        WireError: it is none.
    """
    try:
        tensors = load(data)
        ask = _ASK.validate_json(tensors.pop("ask").numpy().tobytes(), strict=True)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"no question: {error!r}"[:300]) from error
    if not all(name.startswith(_PATCHES) and of.dtype == torch.uint8 and of.ndim == 2 for name, of in tensors.items()):
        raise WireError("beside the question are patches, in rows of bytes")
    for one in ask.placed.media:
        if not 0 <= one.start < one.end <= len(ask.placed.ids) or min(one.grid) < 1:
            raise WireError("a medium stands outside of its prompt, or has no grid")
        if any(not one.start <= first < last <= one.end for first, last in one.shown or ()):
            raise WireError("placeholders stand outside of their medium")
    if not ask.seeds or ask.placed.merge < 1:
        raise WireError("no answer is asked for")
    return ask, {name.removeprefix(_PATCHES): of.numpy() for name, of in tensors.items()}


def version_from(given: Any) -> Version:
    """
    Raises:
        WireError: it is no version.
    """
    try:
        return _VERSION.validate_json(json.dumps(given), strict=True)
    except (TypeError, ValueError) as error:
        raise WireError("no version of weights") from error


def answers_message(version: Version, answers: Sequence[Completion]) -> dict[str, Any]:
    """A reply. Of the prompt only the hash goes back."""
    told = [asdict(one) | {"prompt_ids": digest(one.prompt_ids)} for one in answers]
    return {"version": asdict(version), "answers": told}


def answers_from(message: Mapping[str, Any], ids: tuple[int, ...]) -> tuple[Version, list[Completion]]:
    """The version that answered, and its answers to the prompt `ids`.

    Raises:
        WireError: it is no reply.
    """
    try:
        wanted = digest(ids)
        answers = [
            Completion(
                ids=tuple(map(int, one["ids"])),
                logprobs=tuple(map(float, one["logprobs"])),
                reason=str(one["reason"]),
                cached=int(one["cached"]),
                prompt_ids=ids if one["prompt_ids"] == wanted else (),
            )
            for one in message["answers"]
        ]
        return version_from(message["version"]), answers
    except (KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, WireError) else WireError(f"no reply: {error!r}"[:200]) from error


def body_from(data: bytes) -> dict[str, Any]:
    """A message of JSON.

    Raises:
        WireError: it is none.
    """
    try:
        body = read_json(data)
    except ValueError as error:
        raise WireError(f"no JSON: {str(error)[:100]}") from error
    if not isinstance(body, dict):
        raise WireError("no object of JSON")
    return body


def body_message(body: Mapping[str, Any]) -> bytes:
    """A message of JSON. Log-probs that are no numbers go as the words of Python, which `reply_from` reads."""
    return json.dumps(body, separators=(",", ":")).encode()


def reply_from(data: bytes) -> dict[str, Any]:
    """What a server has replied, beats before it left out.

    Raises:
        WireError: it is no reply.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {str(error)[:100]}") from error
    if not isinstance(body, dict):
        raise WireError("no object of JSON")
    return body


def digest(ids: Sequence[int]) -> str:
    """Hash of token ids: what a server says that it was asked, without sending it back."""
    return hashlib.blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=16).hexdigest()
