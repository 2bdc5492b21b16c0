"""Messages between the trainer and rollout servers: JSON, and pixels as safetensors. Nothing in them can become code.

A prompt comes as one file of safetensors: its description under `ask`, as the bytes of JSON, patches under the keys of their media, and ids
that are to be scored. In place of patches may stand what a family's own processor has made, as bytes of another such file. All else is
JSON. Neither side needs the other's packages, and what is received is checked before it is used.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

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
_PATCHES, _IDS = "patches.", "ids."


class WireError(ValueError):
    """These bytes are no message."""


class RefusalError(VlmrlError):
    """A question or weights are not taken. `reason` is a short code: `version`, `load`, `line`, `teacher`, `refused`,
    `ended`."""

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


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Answers to one prompt that a teacher is to score."""

    placed: Placed
    teacher: str
    """Fingerprint of the one that is to score (`identity`)."""
    temperature: float
    forbidden: tuple[int, ...]


_ASK = TypeAdapter(GenerateRequest)
_SCORE = TypeAdapter(ScoreRequest)
_VERSION = TypeAdapter(Version)
A = TypeVar("A")


def ask_message(ask: GenerateRequest, patches: Mapping[str, np.ndarray]) -> bytes:
    """A question. `patches`: uint8 [patches, dim] by key of the medium, those that the server may not have yet."""
    return _message(_ASK.dump_json(ask), {_PATCHES + key: of for key, of in patches.items()})


def ask_from(data: bytes) -> tuple[GenerateRequest, dict[str, np.ndarray]]:
    """A question, and the patches that came with it.

    Raises:
        WireError: it is none.
    """
    ask, tensors = _taken(data, _ASK)
    _require_placed(ask.placed)
    if not ask.seeds:
        raise WireError("no answer is asked for")
    return ask, _patches(tensors)


def score_message(ask: ScoreRequest, ids: Sequence[np.ndarray], patches: Mapping[str, np.ndarray]) -> bytes:
    """A question to a teacher. `ids`: of each answer, int32 [T, K], its own tokens first and beside them those that are asked for at the
    same places."""
    told = {_PATCHES + key: of for key, of in patches.items()} | {f"{_IDS}{n}": of for n, of in enumerate(ids)}
    return _message(_SCORE.dump_json(ask), told)


def score_from(data: bytes) -> tuple[ScoreRequest, list[np.ndarray], dict[str, np.ndarray]]:
    """A question to a teacher, its ids and its patches.

    Raises:
        WireError: it is none.
    """
    ask, tensors = _taken(data, _SCORE)
    _require_placed(ask.placed)
    ids = [tensors.pop(f"{_IDS}{n}").numpy() for n in range(sum(name.startswith(_IDS) for name in tensors)) if f"{_IDS}{n}" in tensors]
    if not ids or not ask.placed.ids or not all(of.dtype == np.int32 and of.ndim == 2 and of.size and of.min() >= 0 for of in ids):
        raise WireError("no ids are to be scored, or they are no rows of ids")
    if not ask.temperature > 0:
        raise WireError("the temperature is not positive")
    return ask, ids, _patches(tensors)


def scores_message(ask: ScoreRequest, scores: Sequence[bytes]) -> dict[str, Any]:
    """A teacher's reply. `scores`: of each answer, float32 [T, K]."""
    told = [base64.b64encode(of).decode("ascii") for of in scores]
    return {"teacher": ask.teacher, "prompt": digest(ask.placed.ids), "scores": told}


def scores_from(message: Mapping[str, Any], ask: ScoreRequest, ids: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The log-probs of a teacher's reply, float32 [T, K] for each answer.

    Raises:
        WireError: it is none, or one to another question.
    """
    try:
        if message["teacher"] != ask.teacher or message["prompt"] != digest(ask.placed.ids):
            raise WireError("it is of another teacher, or of another prompt")
        rows = [np.frombuffer(base64.b64decode(of, validate=True), dtype="<f4") for of in message["scores"]]
        return [made.reshape(of.shape) for made, of in zip(rows, ids, strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, WireError) else WireError(f"no reply: {error!r}"[:200]) from error


def _message(ask: bytes, tensors: Mapping[str, np.ndarray]) -> bytes:
    told = {name: torch.from_numpy(np.ascontiguousarray(of)) for name, of in tensors.items()}
    return save({"ask": torch.frombuffer(bytearray(ask), dtype=torch.uint8), **told})


def _taken(data: bytes, kind: TypeAdapter[A]) -> tuple[A, dict[str, torch.Tensor]]:
    try:
        tensors = load(data)
        return kind.validate_json(tensors.pop("ask").numpy().tobytes(), strict=True), tensors
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"no question: {error!r}"[:300]) from error


def _patches(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    if not all(name.startswith(_PATCHES) and of.dtype == torch.uint8 and of.ndim in (1, 2) for name, of in tensors.items()):
        raise WireError("beside the question are media: patches in rows of bytes, or tensors by name as bytes")
    return {name.removeprefix(_PATCHES): of.numpy() for name, of in tensors.items()}


def tensors_message(tensors: Mapping[str, torch.Tensor]) -> np.ndarray:
    """What a family's own processor has made of a medium, as bytes [n] in the place of patches."""
    data = save({name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()})
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def tensors_from(data: np.ndarray) -> dict[str, torch.Tensor]:
    """Tensors by name.

    Raises:
        WireError: these are none.
    """
    try:
        return load(data.tobytes())
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"a medium is no tensors by name: {error!r}"[:300]) from error


def _require_placed(placed: Placed) -> None:
    for one in placed.media:
        if not 0 <= one.start < one.end <= len(placed.ids) or min(one.grid) < 1:
            raise WireError("a medium stands outside of its prompt, or has no grid")
        if any(not one.start <= first < last <= one.end for first, last in one.shown or ()):
            raise WireError("placeholders stand outside of their medium")
        if one.seconds is not None and not 0 < one.seconds < math.inf:
            raise WireError("frames of a video take no seconds")
    if placed.merge < 1:
        raise WireError("no answer is asked for")


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
    told = [asdict(replace(one, experts=None)) | {"prompt_ids": digest(one.prompt_ids), "experts": _experts(one)} for one in answers]
    return {"version": asdict(version), "answers": told}


def _experts(answer: Completion) -> dict[str, Any] | None:
    found = answer.experts
    if found is None:
        return None
    return {"shape": found.shape, "type": found.dtype.str, "bytes": base64.b64encode(np.ascontiguousarray(found).tobytes()).decode("ascii")}


def _experts_from(told: Any) -> np.ndarray | None:
    if told is None:
        return None
    kind = np.dtype(told["type"])
    if kind.kind not in "iu":
        raise WireError("experts are no whole numbers")
    return np.frombuffer(base64.b64decode(told["bytes"], validate=True), dtype=kind).reshape(told["shape"])


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
                experts=_experts_from(one["experts"]),
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
    return _object(data, read_json)


def body_message(body: Mapping[str, Any]) -> bytes:
    """A message of JSON. Log-probs that are no numbers go as the words of Python, which `reply_from` reads."""
    return json.dumps(body, separators=(",", ":")).encode()


def reply_from(data: bytes) -> dict[str, Any]:
    """What a server has replied, beats before it left out.

    Raises:
        WireError: it is no reply.
    """
    return _object(data, json.loads)


def _object(data: bytes, read: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        body = read(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {str(error)[:100]}") from error
    if not isinstance(body, dict):
        raise WireError("no object of JSON")
    return body


def digest(ids: Sequence[int]) -> str:
    """Hash of token ids: what a server says that it was asked, without sending it back."""
    return hashlib.blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=16).hexdigest()
