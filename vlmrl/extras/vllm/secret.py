"""The token that a rollout server and its askers share: one word in a file that its owner alone can read."""

from __future__ import annotations

import secrets
from pathlib import Path

from vlmrl import fs
from vlmrl.errors import ConfigError


def read_token(path: Path, what: str) -> str:
    """
    Raises:
        ConfigError: no token is there, or others can read it.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: cannot read {path}: {error}") from error
    if mode & 0o077:
        raise ConfigError(f"{what}: others can read {path}; run: chmod 600 {path}")
    if len(token) < 16 or not token.isprintable() or " " in token:
        raise ConfigError(f"{what}: {path} must hold one word of at least 16 characters")
    return token


def made_token(path: Path, what: str) -> str:
    """The token of a file, which is made if it is not there."""
    if not path.exists():
        path.touch(mode=0o600, exist_ok=True)
        fs.append(path, secrets.token_hex(32).encode() + b"\n")
    return read_token(path, what)
