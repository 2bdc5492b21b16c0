"""DeepSpeed's own operations, compiled once per machine and by one process at a time.

On a CPU DeepSpeed compiles an operation when it is first used. torch marks the build by a file and waits for that file to go, without a
limit: a process that was killed while it built leaves it behind, and every later run on the machine would stand still before its first
step. So they are built here beforehand, under a lock of the operating system, which ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

MARK = "lock"
"""Name of torch's file, in the folder of the operation."""
OLD = 180.0
"""Seconds after which a mark is nobody's: a build takes one minute. Until then it may be that of another program."""


class Builder(Protocol):
    """One of DeepSpeed's `OpBuilder`."""

    name: str

    def load(self, verbose: bool = ...) -> Any: ...


def prebuild() -> None:
    """Have the operation compiled and loaded that DeepSpeed's communication wants on this machine, if there is one."""
    import deepspeed  # pyright: ignore[reportMissingImports]
    from deepspeed.accelerator import get_accelerator  # pyright: ignore[reportMissingImports]
    from torch.utils.cpp_extension import _get_build_directory  # pyright: ignore[reportPrivateUsage]

    accelerator: Any = get_accelerator()
    builder = accelerator.create_op_builder("ShareMemCommBuilder")
    if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
        load_alone(builder, Path(_get_build_directory(builder.name, verbose=False)))


def load_alone(builder: Builder, folder: Path, old: float = OLD) -> None:
    """Build or load an operation while no other process of ours does; a mark that was left behind is taken away with a warning."""
    alone = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX)
        mark = folder / MARK
        while (age := _age(mark)) is not None:
            if age > old:
                warnings.warn(f"{mark} was left by a process that was killed while it compiled {builder.name}; it is removed", stacklevel=2)
                mark.unlink(missing_ok=True)
                break
            time.sleep(min(0.2, old))
        builder.load(verbose=False)
    finally:
        os.close(alone)


def _age(mark: Path) -> float | None:
    """Seconds since a file was made; None when there is none."""
    try:
        return time.time() - mark.stat().st_mtime
    except FileNotFoundError:
        return None
