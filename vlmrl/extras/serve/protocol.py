"""Requests and replies of OpenAI's chat completions, as JSON. Pure: nothing here opens a file or knows of a model.

A field that the engine cannot obey is refused by name, unless its value is the one that changes nothing; fields that only label a request
are ignored. So no client gets other sampling than it asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

MAX_ANSWERS = 128
"""Most answers of one request, as at OpenAI."""
IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "skip_special_tokens", "parallel_tool_calls"}
)
"""Fields that change no answer."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "top_logprobs": (None, 0),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
}
"""Fields that the engine does not do -> the values that ask for nothing."""
ROLES = ("system", "developer", "user", "assistant")
BAN = -100
"""Bias of a token that must not be sampled."""


class Refused(Exception):
    """A request that is answered with an error in OpenAI's form."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None):
        self.status, self.param, self.code = status, param, code
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """The reply."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A piece of a message."""

    kind: str
    """`text`, `image` or `video`."""
    value: str
    """The text, or the URL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn."""

    role: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "\n".join(part.value for part in self.parts if part.kind == "text")


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A request that can be answered."""

    model: str
    messages: tuple[Message, ...]
    n: int = 1
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    token_ids: bool = False
    """vLLM's `return_token_ids`."""
    stream: bool = False
    include_usage: bool = False
    banned: frozenset[int] = frozenset()
    """Tokens of `logit_bias`, all of which may not be sampled."""
    pixels: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's `mm_processor_kwargs`."""
    rate: Mapping[str, Any] = field(default_factory=dict)
    """What vLLM's `media_io_kwargs` say of videos."""


def read_chat(body: Any) -> Chat:
    """The request in the body of a POST to `chat/completions`.

    Raises:
        Refused: it is not one, or asks for what the engine does not do.
    """
    if not isinstance(body, dict):
        raise Refused("the body is not a JSON object")
    given = {str(name): value for name, value in cast("dict[Any, Any]", body).items() if str(name) not in IGNORED}
    for name, neutral in NEUTRAL.items():
        if name in given and given.pop(name) not in neutral:
            raise Refused(f"{name}: this engine does not do that; leave it out", param=name, code="unsupported_parameter")
    stream = _flag(given, "stream")
    options = given.pop("stream_options", None) or {}
    limits = [given.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
    io = _mapping(given, "media_io_kwargs")
    chat = Chat(
        model=_text(given, "model"),
        messages=_messages(given.pop("messages", None)),
        n=_whole(given, "n", 1, least=1, most=MAX_ANSWERS),
        seed=_whole(given, "seed", None, least=-(2**63), most=2**63 - 1),
        temperature=_number(given, "temperature", 1.0, least=0.0, most=100.0),
        top_p=_number(given, "top_p", 1.0, least=0.0, most=1.0),
        max_tokens=next((_limit(value) for value in limits if value is not None), None),
        stop=_stops(given.pop("stop", None)),
        logprobs=_flag(given, "logprobs"),
        token_ids=_flag(given, "return_token_ids"),
        stream=stream,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        banned=_banned(given.pop("logit_bias", None)),
        pixels=_mapping(given, "mm_processor_kwargs"),
        rate=_rate(io),
    )
    if given:
        name = sorted(given)[0]
        raise Refused(f"{name}: unknown field", param=name, code="unknown_parameter")
    if chat.top_p == 0:
        raise Refused("top_p: expected more than 0; temperature 0 is greedy", param="top_p")
    return chat


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise Refused("messages: expected a list of at least one message", param="messages")
    return tuple(_message(one, f"messages[{place}]") for place, one in enumerate(cast("list[Any]", value)))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise Refused(f"{where}.role: expected one of {', '.join(ROLES)}", param="messages")
    content = cast("dict[str, Any]", value).get("content")
    if isinstance(content, str):
        return Message(role=value["role"], parts=(Part(kind="text", value=content),))
    if not isinstance(content, list) or not content:
        raise Refused(f"{where}.content: expected text, or a list of parts", param="messages")
    parts = tuple(_part(part, f"{where}.content[{place}]") for place, part in enumerate(cast("list[Any]", content)))
    if value["role"] != "user" and any(part.kind != "text" for part in parts):
        raise Refused(f"{where}: pictures and videos belong into messages of the user", param="messages")
    return Message(role=value["role"], parts=parts)


def _part(value: Any, where: str) -> Part:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" and isinstance(value.get("text"), str):
        return Part(kind="text", value=value["text"])
    if kind in ("image_url", "video_url"):
        held = value.get(kind)
        url = held.get("url") if isinstance(held, dict) else held
        if isinstance(url, str) and url:
            return Part(kind=str(kind).removesuffix("_url"), value=url)
    raise Refused(
        f"{where}: expected a part of the type text, image_url or video_url with its content, got type {kind!r}", param="messages"
    )


def _text(given: dict[str, Any], name: str) -> str:
    value = given.pop(name, None)
    if not isinstance(value, str) or not value:
        raise Refused(f"{name}: expected text", param=name)
    return value


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.pop(name, None)
    if value not in (None, True, False):
        raise Refused(f"{name}: expected true or false", param=name)
    return value is True


def _whole(given: dict[str, Any], name: str, default: Any, *, least: int, most: int) -> Any:
    value = given.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Refused(f"{name}: expected a whole number from {least} to {most}", param=name)
    return value


def _limit(value: Any) -> int:
    return _whole({"max_tokens": value}, "max_tokens", None, least=1, most=2**31)


def _number(given: dict[str, Any], name: str, default: float, *, least: float, most: float) -> float:
    value = given.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or not least <= value <= most:
        raise Refused(f"{name}: expected a number from {least:g} to {most:g}", param=name)
    return float(value)


def _mapping(given: dict[str, Any], name: str) -> Mapping[str, Any]:
    value = given.pop(name, None)
    if value is not None and not isinstance(value, dict):
        raise Refused(f"{name}: expected an object", param=name)
    return value or {}


def _rate(io: Mapping[str, Any]) -> Mapping[str, Any]:
    rate = io.get("video", {})
    if set(io) - {"video"} or not isinstance(rate, dict):
        raise Refused("media_io_kwargs: expected the times of videos alone, as {'video': {'num_frames': -1, 'fps': 2.0}}")
    return rate


def _stops(value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value or []
    if not isinstance(listed, list) or len(listed) > 4 or not all(isinstance(one, str) and one for one in listed):
        raise Refused("stop: expected text, or up to four of them", param="stop")
    return tuple(listed)


def _banned(value: Any) -> frozenset[int]:
    try:
        items = {int(token): bias for token, bias in (value or {}).items()}
    except (AttributeError, ValueError) as error:
        raise Refused("logit_bias: expected an object of token ids", param="logit_bias") from error
    if any(bias != BAN for bias in items.values()):
        raise Refused(
            f"logit_bias: only {BAN} is done, of tokens that are never sampled here anyway",
            param="logit_bias",
            code="unsupported_parameter",
        )
    return frozenset(items)


# ---- replies -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One answer."""

    text: str
    finish: str
    """`stop` or `length`."""
    ids: tuple[int, ...]
    """As sampled, end token included."""
    pieces: tuple[str, ...] = ()
    """Text of each token, where log-probs are asked for."""
    logprobs: tuple[float, ...] = ()


def cut_at(text: str, stops: Sequence[str]) -> str | None:
    """`text` before the first of the stop strings in it; None where there is none."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else None


def completion(chat: Chat, name: str, created: int, prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, Any]:
    """The reply to a request."""
    return {
        "id": name,
        "object": "chat.completion",
        "created": created,
        "model": chat.model,
        "choices": [
            {
                "index": place,
                "message": {"role": "assistant", "content": one.text, "refusal": None},
                "logprobs": logprobs_of(one) if chat.logprobs else None,
                "finish_reason": one.finish,
                **({"token_ids": list(one.ids)} if chat.token_ids else {}),
            }
            for place, one in enumerate(choices)
        ],
        "usage": usage(prompt_tokens, choices),
    }


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, int]:
    """Tokens of the prompt and of all answers."""
    made = sum(len(one.ids) for one in choices)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": made, "total_tokens": prompt_tokens + made}


def logprobs_of(one: Choice) -> dict[str, Any]:
    """The tokens of an answer, or of a piece of one, with their log-probs."""
    content = [
        {"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, logprob in zip(one.pieces, one.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}
