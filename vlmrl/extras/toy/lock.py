"""One process at a time in the cache of generated worlds and base models."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.run.ui import Ui


@contextmanager
def locked(path: Path, ui: Ui) -> Iterator[None]:
    """One process at a time makes things in the cache; a second one waits and then finds them made."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ui.say(f"waiting for another process that is preparing {path.parent}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
