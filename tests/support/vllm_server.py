"""A real vLLM server on this machine, for tests: started on a free port of 127.0.0.1, and gone with all its processes at the end.

with vllm_server(folder, python=find_python(), served_name="tiny") as server:
    ... server.url ...
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlmrl import fs
from vlmrl.errors import RemoteError

VARIABLE = "VLMRL_VLLM_PYTHON"
"""Environment variable with the interpreter that has vLLM."""
CUSTOMIZE = "import vlmrl\n"
"""As `sitecustomize`: torchvision next to a CPU-only torch in every process that vLLM starts (see `vlmrl.compat`)."""
CPU_MEMORY = ("--enforce-eager", "--gpu-memory-utilization", "0.3")
"""vLLM's CPU build with a tiny model: its default share of memory does not start on a small machine."""
CPU_OPTIONS = ("--dtype", "float32", "--max-model-len", "2048", *CPU_MEMORY)
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
START_SECONDS = 900.0
STOP_SECONDS = 15.0
LOG_TAIL = 3000
"""Bytes of the log that are shown when the server does not start."""


@dataclass(frozen=True, kw_only=True)
class VllmServer:
    """A running server."""

    base: str
    """`http://127.0.0.1:<port>`."""
    model: str
    """Its name in requests."""
    log: Path
    """What the server printed."""
    pid: int
    """Of the process group."""

    @property
    def url(self) -> str:
        """Base address of the OpenAI-compatible API."""
        return f"{self.base}/v1"


def find_python() -> Path | None:
    """The interpreter that has vLLM: the one that `VLMRL_VLLM_PYTHON` names, else this one if vLLM is importable here, else None.

    Raises:
        FileNotFoundError: the variable names no file.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"{VARIABLE} is {named}, which is not a file; name the Python interpreter of an environment with vLLM")
        return Path(named)
    return Path(sys.executable) if importlib.util.find_spec("vllm") is not None else None


@contextmanager
def vllm_server(
    model: Path,
    *,
    python: Path,
    served_name: str,
    folder: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    start_seconds: float = START_SECONDS,
    ours: bool = False,
) -> Iterator[VllmServer]:
    """A server of the model in a folder, up when the block begins and gone, with its children, when it ends.

    Args:
        python: an interpreter with vLLM (`find_python`). This package is put on its path.
        folder: for the log; made if need be.
        options: more arguments of `vllm serve`, after `CPU_OPTIONS`.
        environment: more variables, over `CPU_ENVIRONMENT`.
        ours: start it by `vlmrl serve --engine vllm`, with the line that this prints; `options` are then those of `vlmrl serve`.

    Raises:
        RemoteError: it ended, or did not answer within `start_seconds`; the message has the end of the log and its path.
        StorageError: `folder` cannot be written.
    """
    fs.mkdir(folder)
    log = folder / f"vllm-{served_name}.log"
    fs.write_text(folder / "sitecustomize.py", CUSTOMIZE)
    port = free_port()
    if ours:
        _as_command(folder / "vllm", python)
        command = [sys.executable, "-m", "vlmrl", "serve", str(model), "--engine", "vllm", "--name", served_name, "--no-key"]
        command += ["--dtype", "float32", "--port", str(port), *options, "--", *CPU_MEMORY]
    else:
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", served_name]
        command += ["--host", "127.0.0.1", "--port", str(port), *CPU_OPTIONS, *options]
    package = Path(__file__).resolve().parents[2]
    paths = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(package), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PATH")])]),
    }
    process = _start(command, {**os.environ, **CPU_ENVIRONMENT, **paths, **(environment or {})}, log)
    try:
        server = VllmServer(base=f"http://127.0.0.1:{port}", model=served_name, log=log, pid=process.pid)
        _wait(server, process, start_seconds)
        yield server
    finally:
        end_group(process)


def _as_command(path: Path, python: Path) -> None:
    """A command `vllm` that takes `serve MODEL OPTIONS`. The CPU build's own does not start: it asks for the metadata of a package `vllm`,
    and has another name."""
    module = "vllm.entrypoints.openai.api_server"
    fs.write_text(path, f'#!/bin/sh\nshift\nmodel="$1"\nshift\nexec "{python}" -m {module} --model "$model" "$@"\n')
    path.chmod(0o755)


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """The command in a process group of its own; its output goes to `log`."""
    fs.write_text(log, " ".join(command) + "\n")
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        return subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=descriptor, stderr=subprocess.STDOUT, start_new_session=True
        )
    finally:
        os.close(descriptor)


def _wait(server: VllmServer, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Until `/health` answers 200."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        code = process.poll()
        if code is not None:
            raise RemoteError(f"vLLM ended with code {code} while it started; {_tail(server.log)}")
        if healthy(server.base):
            return
        time.sleep(0.25)
    raise RemoteError(f"vLLM did not answer {server.base}/health within {seconds:g} s; {_tail(server.log)}")


def healthy(base: str) -> bool:
    """Whether `/health` of a server at `http://host:port` answers 200."""
    connection = http.client.HTTPConnection(base.removeprefix("http://"), timeout=2.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):  # not listening yet, or busy: asked again until the deadline
        return False
    finally:
        connection.close()


def _tail(log: Path) -> str:
    return f"the end of its log {log}:\n{log.read_bytes()[-LOG_TAIL:].decode('utf-8', 'replace')}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its group, and whatever is left of the group: first politely, after `STOP_SECONDS` by force."""
    _signal(process.pid, signal.SIGTERM)
    end = time.monotonic() + STOP_SECONDS
    while time.monotonic() < end and (process.poll() is None or _signal(process.pid, 0)):
        time.sleep(0.05)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> bool:
    """Whether the group still had a process to receive it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
