"""Where servers are: `HOST:PORT`, and whether that is this machine."""

from __future__ import annotations

import ipaddress


def address_of(text: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        ValueError: not `HOST:PORT`.
    """
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    fits = name != "" and not any(c in name for c in "/@?# ") and (bracketed or ":" not in name)
    if not fits or not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ValueError(f"expected HOST:PORT, as 127.0.0.1:7000, got '{text}'")
    return name, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name: nothing is looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
