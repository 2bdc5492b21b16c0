"""One HTTP exchange with a server that is not trusted: no redirects, bounded time and size, strict JSON. Nothing is retried here."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import httpx

MAX_REPLY = 2**20
"""Bytes of a reply, on the wire and unpacked."""
MAX_REQUEST = 64 * 2**20

Kind = Literal["again", "refused", "unusable"]
"""`again`: may work later. `refused`: not this request. `unusable`: no request will ever work as things are set up."""

_UNUSABLE = (401, 403, 404, 405, 407, 410, 421, 451)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no reply."""

    kind: Kind
    reason: str
    """Short code, for counting."""
    detail: str
    """For people; never holds the key."""
    retry_after: float | None = None
    """Seconds that the server asked to wait."""


def exchange(
    http: httpx.Client, url: str, body: bytes, *, timeout: float, secret: str | None, now: Callable[[], float], wall: Callable[[], float]
) -> dict[str, Any] | Failure:
    """Post a JSON body, and return the JSON object that came back.

    Args:
        timeout: seconds for connecting, for each wait for bytes, and for the whole reply.
        secret: text that must not appear in messages.
    """
    if len(body) > MAX_REQUEST:
        return Failure(kind="refused", reason="request_too_large", detail=f"the request has {len(body)} bytes, the limit is {MAX_REQUEST}")
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    end = now() + timeout
    try:
        with http.stream("POST", url, content=body, headers=headers, timeout=timeout) as response:
            data = _bounded(response, end, now)
    except httpx.TimeoutException as error:
        return Failure(kind="again", reason="timeout", detail=f"{url}: no reply within {timeout:g} s ({type(error).__name__})")
    except httpx.TransportError as error:
        return Failure(kind="again", reason="connection", detail=f"{url}: {_shown(str(error) or type(error).__name__, secret)}")
    if isinstance(data, Failure):
        return data
    if response.status_code != 200:
        return _failed(response, data, url, secret, wall)
    return _object(data, url)


def _bounded(response: httpx.Response, end: float, now: Callable[[], float]) -> bytes | Failure:
    """The body, unpacked."""
    url = str(response.request.url)
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > MAX_REPLY:
            return Failure(kind="again", reason="too_large", detail=f"{url}: the reply has more than {MAX_REPLY} bytes")
        if now() > end:
            return Failure(kind="again", reason="timeout", detail=f"{url}: the reply trickled in for longer than the timeout")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return bytes(data)
    if encoding not in ("gzip", "deflate"):
        return Failure(kind="again", reason="encoding", detail=f"{url}: the reply is packed as '{encoding[:40]}', which was not asked for")
    return _unpacked(bytes(data), url)


def _unpacked(data: bytes, url: str) -> bytes | Failure:
    """gzip or zlib, by its header; never more than `MAX_REPLY` bytes are made."""
    unpacker = zlib.decompressobj(wbits=47)
    try:
        out = unpacker.decompress(data, MAX_REPLY + 1)
    except zlib.error as error:
        return Failure(kind="again", reason="encoding", detail=f"{url}: the packed reply is damaged: {error}")
    if len(out) > MAX_REPLY:
        return Failure(kind="again", reason="too_large", detail=f"{url}: the unpacked reply has more than {MAX_REPLY} bytes")
    if not unpacker.eof:
        return Failure(kind="again", reason="encoding", detail=f"{url}: the packed reply is cut off")
    return out


def _failed(response: httpx.Response, data: bytes, url: str, secret: str | None, wall: Callable[[], float]) -> Failure:
    status = response.status_code
    detail = f"{url}: HTTP {status}: {_shown(data[:2000].decode('utf-8', 'replace'), secret)}"
    if status in (408, 425, 429) or status >= 500:
        after = _retry_after(response.headers.get("retry-after"), wall)
        return Failure(kind="again", reason=f"http_{status}", detail=detail, retry_after=after)
    if 300 <= status < 400:
        detail = f"{url}: HTTP {status}: it redirects, and redirects are not followed; give the final address as endpoint.url"
    kind = "unusable" if status < 400 or status in _UNUSABLE else "refused"
    return Failure(kind=kind, reason=f"http_{status}", detail=detail)


def _retry_after(value: str | None, wall: Callable[[], float]) -> float | None:
    """Seconds; the header is a number of seconds or a date. Not readable: None."""
    if value is None:
        return None
    if re.fullmatch(r"\s*\d{1,9}\s*", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - wall())
    except (ValueError, TypeError, OverflowError):
        return None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def strict_json(text: str) -> Any:
    """JSON without NaN and infinities.

    Raises:
        ValueError: not that, or nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def first_value(text: str, place: int) -> Any:
    """The JSON value that begins at `place`, whatever follows it; None if there is none."""
    try:
        return _DECODER.raw_decode(text, place)[0]
    except (ValueError, RecursionError):
        return None


def _object(data: bytes, url: str) -> dict[str, Any] | Failure:
    try:
        value = strict_json(data.decode("utf-8"))
    except ValueError as error:  # also UnicodeDecodeError
        return Failure(kind="again", reason="not_json", detail=f"{url}: the reply is not JSON: {str(error)[:200]}")
    if not isinstance(value, dict):
        return Failure(kind="again", reason="not_json", detail=f"{url}: the reply is a JSON {type(value).__name__}, expected an object")
    return value


def _shown(text: str, secret: str | None) -> str:
    """Foreign text for a message: one line, without control characters and without the key."""
    if secret:
        text = text.replace(secret, "***")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
