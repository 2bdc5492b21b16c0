"""One HTTP exchange with a reward service: the `endpoint` argument that says where it is, and a request with bounds.

The server is not trusted: no redirects, bounded time and size, strict JSON. Nothing is retried here (`client` does that).
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from vlmrl.errors import ConfigError
from vlmrl.registry import nearest

if TYPE_CHECKING:
    import httpcore


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One service. The key itself is never here: only the name of the environment variable that holds it."""

    url: str
    """Base address, for chat up to and including `/v1`. https, or http to this machine."""
    model: str
    """Model name as the service knows it; part of the address of cached verdicts."""
    key_env: str | None = None
    """Environment variable with the API key; None sends none."""
    concurrency: int = 8
    """Requests at once, per process."""
    timeout: float = 60.0
    """Seconds for one HTTP exchange, from connecting to the last byte of the reply."""
    deadline: float = 600.0
    """Seconds for one verdict with its retries, while the service is up; then the row is unjudged."""
    max_wait: float = 1800.0
    """Seconds that the run waits for a service that is down, before it stops with exit code 69."""
    cache: bool = True
    """Keep verdicts under the run's folder and never ask the same thing twice."""
    max_tokens: int = 1024
    """Length of a judge's reply."""
    json_mode: bool = True
    """Ask chat services for `response_format: json_object`; switch off where the service does not know it."""
    price_in: float = 0.0
    price_out: float = 0.0
    """Price of a million prompt and completion tokens, in any currency: for the metric `judge/cost`."""

    @staticmethod
    def of(given: Mapping[str, Any]) -> Endpoint:
        """From a recipe.

        Raises:
            ConfigError: with everything that is wrong.
        """
        problems = _problems(given)
        if problems:
            raise ConfigError([f"endpoint: {problem}" for problem in problems])
        return Endpoint(**given)


_KINDS = {"str": "a text", "str | None": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}
_POSITIVE = ("concurrency", "timeout", "deadline", "max_wait", "max_tokens")


def _problems(given: Mapping[str, Any]) -> list[str]:
    known = {field.name: field for field in fields(Endpoint)}
    out = [f"unknown '{key}'{nearest(key, list(known))} (known: {', '.join(known)})" for key in given if key not in known]
    for name, field in known.items():
        if name not in given:
            if field.default is MISSING:
                out.append(f"'{name}' is missing")
        elif not _fits(given[name], str(field.type)):
            out.append(f"'{name}' must be {_KINDS[str(field.type)]}, got {given[name]!r}")
        elif name in _POSITIVE and given[name] <= 0:
            out.append(f"'{name}' must be positive, got {given[name]}")
        elif name in ("price_in", "price_out") and given[name] < 0:
            out.append(f"'{name}' must not be negative, got {given[name]}")
    return out if out else _url_problems(given["url"])


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("int", "float"):
        number = isinstance(value, int if kind == "int" else int | float) and not isinstance(value, bool)
        return number and math.isfinite(value)
    return (isinstance(value, str) and value != "") or (kind == "str | None" and value is None)


def _url_problems(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return [f"'url' is not an address: {error}"]
    if parts.username is not None or parts.password is not None:
        return ["'url' holds a user name or password; give the name of an environment variable as 'key_env' instead"]
    if parts.query or parts.fragment:
        return ["'url' has a query or fragment; give the base address only, keys go into the variable named by 'key_env'"]
    if parts.scheme not in ("https", "http") or not host:
        return [f"'url' must be https://host/..., or http:// to this machine, got '{url}'"]
    if parts.scheme == "http" and not is_loopback(host):
        return [f"'url' is http to another machine ('{host}'): what it answers decides rewards, so use https, or a tunnel to 127.0.0.1"]
    return []


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name: nothing is looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    http: httpcore.ConnectionPool,
    url: str,
    body: bytes | None,
    *,
    timeout: float,
    secret: str | None,
    now: Callable[[], float],
    wall: Callable[[], float],
) -> dict[str, Any] | Failure:
    """Post a JSON body, or get what is there, and return the JSON object that came back.

    Args:
        http: of `network.open_pool`.
        body: to post; None to get.
        timeout: seconds for all of it: connecting, sending, and the reply from its status line to its last byte.
        secret: text that must not appear in messages.
    """
    # Imported when something is asked: every recipe's check imports the rewards that judges stand behind.
    import httpcore
    import httpx

    from vlmrl.extras.judges.network import until

    if body is not None and len(body) > MAX_REQUEST:
        return Failure(kind="refused", reason="request_too_large", detail=f"the request has {len(body)} bytes, the limit is {MAX_REQUEST}")
    headers = [("User-Agent", "vlmrl"), ("Accept", "application/json"), ("Accept-Encoding", "identity")]
    if body is not None:
        headers.append(("Content-Type", "application/json"))
    if secret is not None:
        headers.append(("Authorization", f"Bearer {secret}"))
    parsed = httpx.URL(url)
    asked = httpcore.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path)
    try:
        with (
            until(now() + timeout, now),
            http.stream(
                "GET" if body is None else "POST", asked, content=body, headers=headers, extensions={"timeout": {"pool": timeout}}
            ) as response,
        ):
            received = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            data = _bounded(response.iter_stream(), received.get("content-encoding", "identity"), url)
    except httpcore.TimeoutException as error:
        return Failure(kind="again", reason="timeout", detail=f"{url}: no whole reply within {timeout:g} s ({type(error).__name__})")
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return Failure(kind="again", reason="connection", detail=f"{url}: {_shown(str(error) or type(error).__name__, secret)}")
    if isinstance(data, Failure):
        return data
    if response.status != 200:
        return _failed(response.status, received.get("retry-after"), data, url, secret, wall)
    return _object(data, url)


def _bounded(chunks: Iterable[bytes], encoding: str, url: str) -> bytes | Failure:
    """The body, unpacked."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_REPLY:
            return Failure(kind="again", reason="too_large", detail=f"{url}: the reply has more than {MAX_REPLY} bytes")
    encoding = encoding.strip().lower()
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


def _failed(status: int, retry_after: str | None, data: bytes, url: str, secret: str | None, wall: Callable[[], float]) -> Failure:
    detail = f"{url}: HTTP {status}: {_shown(data[:2000].decode('utf-8', 'replace'), secret)}"
    if status in (408, 425, 429) or status >= 500:
        after = _retry_after(retry_after, wall)
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
