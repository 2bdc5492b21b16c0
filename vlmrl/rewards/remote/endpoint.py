"""Where a service is and how it may be used: the `endpoint` argument of model-judged rewards."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from vlmrl.errors import ConfigError
from vlmrl.registry import nearest


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
    """Seconds for one HTTP exchange."""
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
