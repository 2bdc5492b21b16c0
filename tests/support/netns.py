"""Hosts of a test: network namespaces of this machine, each with an address of its own, joined by a bridge in one more namespace.

    with Hosts(3) as hosts:
        process = hosts.start(0, ["python", "x.py"], env={...}, log=path)
        hosts.cut(1)

A link that is cut drops every packet without a word, as a pulled cable does. Needs `ip netns`, so root; `unavailable` says why not.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_COUNT = itertools.count()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@functools.cache
def unavailable() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if shutil.which("ip") is None:
        return "no program `ip`"
    name = f"vlmrl{os.getpid()}probe"
    try:
        _ip("netns", "add", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"`ip netns` is not permitted: {str(getattr(error, 'stderr', '') or error).strip()}"
    try:
        _ip("-n", name, "link", "add", "name", "probe", "type", "bridge")
    except subprocess.SubprocessError as error:
        return f"no bridge can be made: {getattr(error, 'stderr', '').strip()}"
    finally:
        _ip("netns", "del", name)
    return ""


class Hosts:
    """Some hosts on one network. Their file systems are this machine's."""

    def __init__(self, count: int):
        self._stem = f"vlmrl{os.getpid()}n{next(_COUNT)}"
        self._switch = f"{self._stem}s"
        self.names = [f"{self._stem}h{n}" for n in range(count)]
        self.addresses = [f"10.77.0.{n + 1}" for n in range(count)]
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "name", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for n, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "add", "name", "eth0", "type", "veth", "peer", "name", f"port{n}", "netns", self._switch)
            _ip("-n", self._switch, "link", "set", f"port{n}", "master", "bridge")
            _ip("-n", self._switch, "link", "set", f"port{n}", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def start(
        self, host: int, command: Sequence[str], *, env: Mapping[str, str], log: Path, mount: tuple[Path, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process of a host, whose output goes to a file. With `mount`, a folder is a file system of its own there, as small as said."""
        words = list(command)
        if mount is not None:  # `ip netns exec` gives each process mounts of its own
            words = ["sh", "-c", 'mount -t tmpfs -o size="$0" tmpfs "$1" && shift && exec "$@"', mount[1], str(mount[0]), *words]
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
            )
        self._started.append(process)
        return process

    def cut(self, host: int) -> None:
        """Take a host off the network."""
        _ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        _ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def pids(self, host: int) -> list[int]:
        """What runs on a host."""
        done = subprocess.run(["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, timeout=30, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def close(self) -> None:
        for host in range(len(self.names)):
            for pid in self.pids(host):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for process in self._started:
            process.kill()
            process.wait()
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)

    def __exit__(self, *_: object) -> None:
        self.close()
