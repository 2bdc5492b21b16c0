"""Named crash points: no-ops in normal runs, so that tests can kill a run at an exact place.

`VLMRL_FAULT=ckpt.after_manifest@3:kill` acts the third time that point is passed. Actions: `kill` (SIGKILL to self),
`raise`, `hang`, `enospc`, `term` (SIGTERM to self). Several faults are separated by commas. `#rank=1` limits one to a rank.
"""

from __future__ import annotations

import errno
import os
import signal
import time

POINTS = (
    "run.opened",
    "stage.started",
    "rollout.chunk",
    "rollout.ahead",
    "rollout.turn",
    "rollout.scored",
    "step.before_update",
    "step.after_update",
    "step.after_log",
    "ckpt.start",
    "ckpt.after_tensors",
    "ckpt.after_manifest",
    "ckpt.after_rename",
    "ckpt.after_retention",
    "eval.record",
    "export.written",
    "stage.exported",
    "stage.finished",
)

_passed: dict[str, int] = {}


class InjectedFault(RuntimeError):
    """Raised by a `raise` fault."""


def point(name: str) -> None:
    """Mark a place where a test may make the process fail."""
    spec = os.environ.get("VLMRL_FAULT")
    if not spec:
        return
    if name not in POINTS:
        raise ValueError(f"fault point '{name}' is not listed in faults.POINTS")
    _passed[name] = _passed.get(name, 0) + 1
    for part in spec.split(","):
        place, _, action = part.partition(":")
        action, _, rank = action.partition("#rank=")
        where, _, nth = place.partition("@")
        if where == name and _passed[name] == int(nth or 1) and (not rank or rank == os.environ.get("RANK", "0")):
            _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif action == "hang":
        time.sleep(3600)
    elif action == "enospc":
        raise OSError(errno.ENOSPC, f"injected at {name}")
    elif action == "raise":
        raise InjectedFault(name)
    else:
        raise ValueError(f"unknown fault action '{action}'")
