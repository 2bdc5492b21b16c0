"""Starting and ending a server for tests, with a stand-in for the interpreter that has vLLM."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.vllm_server import VARIABLE, find_python, free_port, healthy, vllm_server
from vlmrl.errors import RemoteError

SERVES = """
    import http.server, subprocess, sys

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("arguments", sys.argv[1:], "child", child.pid, flush=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def stand_in(folder: Path, body: str) -> Path:
    """An "interpreter" that runs `body` whatever module it is asked for."""
    script = folder / "body.py"
    script.write_text(textwrap.dedent(body))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{script}" "$@"\n')
    python.chmod(0o755)
    return python


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be looked at does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    for _ in range(500):
        if not is_alive(pid):
            return True
        time.sleep(0.01)
    return False


def child_of(log: Path) -> int:
    return int(log.read_text().split("child ")[1].split()[0])


def test_a_server_is_up_in_the_block_and_gone_with_its_children_after_it(tmp_path: Path):
    python = stand_in(tmp_path, SERVES)
    with vllm_server(tmp_path / "m", python=python, served_name="tiny", folder=tmp_path / "log", options=["--max-num-seqs", "3"]) as server:
        child = child_of(server.log)
        assert healthy(server.base)
        assert server.url == f"{server.base}/v1"
        assert is_alive(server.pid)
        assert is_alive(child)
        said = server.log.read_text()
    assert gone(server.pid)
    assert gone(child)
    assert not healthy(server.base)
    for part in (f"'--model', '{tmp_path / 'm'}'", "'--served-model-name', 'tiny'", "'--host', '127.0.0.1'", "'--max-num-seqs', '3'"):
        assert part in said


def test_an_error_in_the_block_ends_the_server_too(tmp_path: Path):
    python = stand_in(tmp_path, SERVES)
    seen: list[int] = []

    def fails() -> None:
        with vllm_server(tmp_path, python=python, served_name="t", folder=tmp_path) as server:
            seen.extend([server.pid, child_of(server.log)])
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert len(seen) == 2
    assert all(gone(pid) for pid in seen)


def test_a_server_that_ends_while_it_starts_shows_its_log(tmp_path: Path):
    python = stand_in(tmp_path, "print('no such model', flush=True)\nraise SystemExit(3)\n")
    with (
        pytest.raises(RemoteError, match=r"(?s)ended with code 3 .*vllm-t\.log:.*no such model"),
        vllm_server(tmp_path, python=python, served_name="t", folder=tmp_path),
    ):
        pass


def test_a_server_that_never_answers_is_ended_at_the_deadline(tmp_path: Path):
    python = stand_in(tmp_path, "import os, time\nprint('child', os.getpid(), '', flush=True)\ntime.sleep(600)\n")
    with (
        pytest.raises(RemoteError, match=r"did not answer .*/health within 1\.5 s.*vllm-t\.log"),
        vllm_server(tmp_path, python=python, served_name="t", folder=tmp_path, start_seconds=1.5),
    ):
        pass
    log = (tmp_path / "vllm-t.log").read_text()
    assert "child" not in log or gone(child_of(tmp_path / "vllm-t.log"))  # a busy machine may not have got so far


def test_the_environment_has_this_package_and_the_hook_of_torchvision(tmp_path: Path):
    python = stand_in(tmp_path, "import os\nprint(os.environ['PYTHONPATH'], os.environ['EXTRA'], flush=True)\nraise SystemExit(0)\n")
    folder = tmp_path / "log"
    with (
        pytest.raises(RemoteError, match="ended with code 0"),
        vllm_server(tmp_path, python=python, served_name="t", folder=folder, environment={"EXTRA": "more"}),
    ):
        pass
    paths = (folder / "vllm-t.log").read_text().splitlines()[-1]
    root = Path(__file__).parents[3]
    assert paths.startswith(f"{folder}{os.pathsep}{root}")
    assert paths.endswith(" more")
    assert (folder / "sitecustomize.py").read_text() == "import vlmrl\n", "which looks out for torchvision"


def test_which_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert find_python() == Path(sys.executable)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match=VARIABLE):
        find_python()
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_python() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert find_python() == Path(sys.executable)


def test_ports_are_free():
    assert not healthy(f"http://127.0.0.1:{free_port()}")
