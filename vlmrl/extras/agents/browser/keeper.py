"""The keeper of a browser: a program that starts it, ends it with all its processes when its user is gone, and removes its profile.

    python keeper.py REQUESTS REPLIES MEMORY CPU PROGRAM FLAG...

A worker may be killed at any time, and cannot clean up then. So the browser has a parent of its own, in a session of its own, which needs
nothing but the standard library. It ends when its standard input ends, which the worker holds, or when the browser does. If the keeper
is killed, the browser dies with it. When the browser has ended, one line of JSON tells how.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

PREFIX = "vlmrl-browser-"
"""Of the folder of a profile."""
KEPT = ("PATH", "LD_LIBRARY_PATH", "FONTCONFIG_FILE", "FONTCONFIG_PATH")
"""Variables that the browser gets. Nothing else: no token, no proxy."""
PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 0.25
TAIL = 2000


def main(arguments: list[str]) -> None:
    """Keep one browser until it ends or standard input does."""
    requests, replies, memory, cpu = map(int, arguments[:4])
    profile = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        pid = os.fork()
        if pid == 0:
            _become(arguments[4:], profile, requests, replies, memory, cpu)
        os.close(requests)
        os.close(replies)
        status = _wait(pid)
        code = os.waitstatus_to_exitcode(status)
        said = (profile / "said").read_bytes()[-TAIL:].decode("utf-8", "replace") if (profile / "said").exists() else ""
        os.write(1, json.dumps({"code": code, "said": said}).encode() + b"\n")
    finally:
        _remove(profile)


def _become(command: list[str], profile: Path, requests: int, replies: int, memory: int, cpu: int) -> None:
    """In the child: become the browser, whose ends of the pipes are descriptors 3 and 4. Does not return."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        said = os.open(profile / "said", os.O_WRONLY | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        # out of the way first: the descriptors that are given may be 3 and 4 in the other order
        placed = [fcntl.fcntl(one, fcntl.F_DUPFD, 16) for one in (nothing, nothing, said, requests, replies)]
        for number, one in enumerate(placed):
            os.dup2(one, number)
        os.closerange(len(placed), 64)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for limit, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, cpu)):
            hard = resource.getrlimit(limit)[1]
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (soft, hard))
        variables = {name: os.environ[name] for name in KEPT if name in os.environ}
        variables |= {"HOME": str(profile), "TMPDIR": str(profile), "TZ": "UTC", "LANG": "C.UTF-8"}
        os.execve(command[0], [*command, f"--user-data-dir={profile}", "about:blank"], variables)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}".encode())
    os._exit(127)


def _wait(pid: int) -> int:
    """Until the browser ends, or standard input does; then all of the browser's group is dead. Its status."""
    while True:
        # look without reaping: the group's number stays its own until it is killed
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if ended or (select.select([0], [], [], LOOK_SECONDS)[0] and not os.read(0, 1)):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # a child that did not get to `setsid`
                os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]


def _remove(profile: Path) -> None:
    """Processes of the group may still be ending, and write."""
    for _ in range(20):
        shutil.rmtree(profile, ignore_errors=True)
        if not profile.exists():
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])
