"""Records the primitive operations of `vlmrl.fs`, or makes the n-th of them fail as on a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from vlmrl import fs

FREEING = ("unlink", "rmdir", "truncate")
"""Operations that a full disk does not refuse."""


@dataclass(slots=True)
class Fault:
    """Makes the `at`-th refusable operation fail (1 is the next one), and with `sticky` all that follow."""

    at: int
    error: int = errno.ENOSPC
    sticky: bool = False
    seen: int = 0
    hits: int = 0

    def strikes(self, kind: fs.Kind) -> bool:
        if kind in FREEING:
            return False
        self.seen += 1
        hit = self.seen >= self.at if self.sticky else self.seen == self.at
        self.hits += hit
        return hit


@contextmanager
def _instead(do: Callable[[fs.Op, Callable[[], object]], None]) -> Iterator[None]:
    before, fs._do = fs._do, do
    try:
        yield
    finally:
        fs._do = before


@contextmanager
def record() -> Iterator[list[fs.Op]]:
    """Collects the operations done inside the block, in order, into the yielded list."""
    log: list[fs.Op] = []
    inner = fs._do

    def do(op: fs.Op, act: Callable[[], object]) -> None:
        inner(op, act)
        by_library = op.kind == "write" and not op.data  # `fs.write_with`: the library wrote the file before
        log.append(replace(op, data=op.path.read_bytes()) if by_library else op)

    with _instead(do):
        yield log


@contextmanager
def fail_at(n: int, *, error: int = errno.ENOSPC, sticky: bool = False) -> Iterator[Fault]:
    """Inside the block the n-th operation that needs space fails with `error`; a write fails after half of its data."""
    fault = Fault(n, error, sticky)
    inner = fs._do

    def do(op: fs.Op, act: Callable[[], object]) -> None:
        def fail() -> None:
            if op.kind == "write":
                fs._append(op.path, op.data[: len(op.data) // 2])
            raise OSError(error, os.strerror(error))

        inner(op, fail if fault.strikes(op.kind) else act)

    with _instead(do):
        yield fault
