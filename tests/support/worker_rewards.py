"""Rewards that misbehave, for the tests of workers. Registered as a user's plug-in would register them; imported by the workers."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group

CALLS: list[str] = []
KEPT: list[bytearray] = []


@reward("stub_length")
def stub_length(group: Group, ctx: RewardContext, *, scale: float = 1.0) -> list[float]:
    """Number of characters times `scale`."""
    return [scale * len(r.text) for r in group.rollouts]


@reward("stub_hang")
def stub_hang(group: Group, ctx: RewardContext, *, how: str) -> list[float]:
    """Never returns for a group with the text `hang`."""
    if group.rollouts[0].text != "hang":
        return [1.0] * len(group.rollouts)
    if how == "ignore_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how in ("sleep", "ignore_sigterm"):
        time.sleep(1000)
    if how == "sleep_below_c":  # holds the interpreter's lock: no thread of the worker runs any more
        ctypes.PyDLL(None).sleep(1000)
    if how == "deadlock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if how == "child":
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=False)
    while True:
        pass


@reward("stub_die")
def stub_die(group: Group, ctx: RewardContext, *, how: str) -> list[float]:
    """Takes its process with it for a group with the text `die`."""
    if group.rollouts[0].text != "die":
        return [1.0] * len(group.rollouts)
    if how == "abort":
        os.abort()
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "after_fork":
        if os.fork() == 0:
            time.sleep(1000)  # holds the pipes open
        os._exit(3)
    if how == "garbage":
        for descriptor in range(3, 1024):
            try:
                os.write(descriptor, b"not what was asked for\n")
            except OSError:
                continue
        time.sleep(1000)
    raise ValueError(how)


@reward("stub_raise")
def stub_raise(group: Group, ctx: RewardContext, *, kind: str) -> list[float]:
    """Raises for a group with the text `raise`."""
    if group.rollouts[0].text != "raise":
        return [1.0] * len(group.rollouts)
    print("said before the fault")
    kinds = {"value": ValueError("no"), "exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "recursion": RecursionError()}
    raise kinds[kind]


@reward("stub_return")
def stub_return(group: Group, ctx: RewardContext, *, what: str) -> Any:
    """Breaks the contract in the way that is asked for."""
    wrong = {
        "short": [1.0],
        "long": [1.0] * 3,
        "nan": [1.0, float("nan")],
        "inf": [1.0, float("inf")],
        "bool": [1.0, True],
        "string": [1.0, "1"],
        "text": "11",
        "none": None,
        "number": 1.0,
        "array": np.zeros(2),
        "numpy32": [1.0, np.float32(1)],
        "huge": [1.0, 10**400],
    }
    return wrong[what]


@reward("stub_memory")
def stub_memory(group: Group, ctx: RewardContext) -> list[float]:
    """Takes memory until there is none left, for a group with the text `eat`."""
    if group.rollouts[0].text == "eat":
        while True:
            KEPT.append(bytearray(64 << 20))
    return [1.0] * len(group.rollouts)


@reward("stub_litter")
def stub_litter(group: Group, ctx: RewardContext, *, folder: str) -> list[float]:
    """Changes everything of its process that a reward should leave alone; 1 where it found it as it should be."""
    clean = "STUB_LITTER" not in os.environ and os.getcwd() != os.path.realpath(folder)
    np.random.seed(7)
    os.environ["STUB_LITTER"] = "1"
    os.chdir(folder)
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    print("x" * 1_000_000)
    print("y" * 1_000_000, file=sys.stderr)
    sys.stdin.read()
    return [float(clean)] * len(group.rollouts)


@reward("stub_pid")
def stub_pid(group: Group, ctx: RewardContext) -> list[float]:
    """The process that it runs in, and how often it has been called there."""
    CALLS.append(group.id)
    return [float(os.getpid()), float(len(CALLS))]


@reward("stub_see")
def stub_see(group: Group, ctx: RewardContext) -> list[float]:
    """1 where group and context have come whole."""
    prompt, rollout = group.prompt, group.rollouts[0]
    facts = (
        prompt.sample.gt["time"] == [3.0, 0.1],
        prompt.media[0].grid_thw == (2, 4, 6),
        prompt.media[0].step_times == (0.25, 1.5),
        prompt.spans == ((0, 2),),
        rollout.logprobs == (-0.1, -1e-300),
        ctx.progress == 0.3,
        rollout.text == "\u00e9\u4e2d\n\ud800",
        "torch" not in sys.modules,
    )
    return [float(f) for f in facts]


@reward("stub_imports", imports=("fractions",))
def stub_imports(group: Group, ctx: RewardContext) -> list[float]:
    """1 where its module has been imported before the call."""
    return [float("fractions" in sys.modules)] * len(group.rollouts)
