"""agents.browser.pipe and keeper: messages in any pieces, calls and events, and a browser that never outlives its user. None is needed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.browsers import alive, below, comes_true
from vlmrl.extras.agents.browser import keeper
from vlmrl.extras.agents.browser.pipe import BrowserError, Pipe, Splitter
from vlmrl.extras.agents.browser.process import Browser

MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=3), max_size=6)


@given(MESSAGES, st.lists(st.integers(0, 200), max_size=8))
def test_messages_come_whole_however_the_stream_is_cut(messages, cuts):
    stream = b"".join(json.dumps(one).encode() + b"\0" for one in messages)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = Splitter()
    assert [one for a, b in itertools.pairwise(places) for one in splitter.feed(stream[a:b])] == messages


@pytest.mark.parametrize("wrong", [b"{\0", b"[1]\0", b"\xff\0", b"\0"])
def test_what_is_no_message_is_an_error(wrong):
    with pytest.raises(BrowserError, match="the browser sent what is no"):
        Splitter().feed(wrong)


class Stand:
    """The other end of the pipes: answers each call as a table says, with events before it."""

    def __init__(self, answers: dict[str, list[dict]], seconds: float = 60.0):
        requests, self._write = os.pipe()
        self._read, replies = os.pipe()
        self.pipe = Pipe(self._write, self._read, seconds=seconds, died=lambda: "; it died of boredom")
        self.asked: list[dict] = []
        self._thread = threading.Thread(target=self._serve, args=(requests, replies, answers), daemon=True)
        self._thread.start()

    def _serve(self, requests: int, replies: int, answers: dict[str, list[dict]]) -> None:
        splitter = Splitter()
        while data := os.read(requests, 1 << 14):
            for message in splitter.feed(data):
                self.asked.append(message)
                if message["method"] == "die":
                    os.close(replies)
                    return
                for answer in answers.get(message["method"], []):
                    known = {"id": message["id"]} if "method" not in answer else {}
                    os.write(replies, json.dumps({**known, **answer}).encode() + b"\0")


def test_a_call_gets_its_own_result_and_events_go_to_their_session():
    heard: list[str] = []
    events = [{"method": "E.one", "params": {}, "sessionId": session} for session in ("a", "b", "a")]
    stand = Stand({"ask": [*events, {"id": 999, "result": {"n": 0}}, {"result": {"n": 7}}]})
    stand.pipe.listen("a", lambda event: heard.append(event["method"]))
    assert stand.pipe.call("ask", {"x": 1}, "a") == {"n": 7}
    assert heard == ["E.one", "E.one"]
    assert stand.asked == [{"id": 1, "method": "ask", "params": {"x": 1}, "sessionId": "a"}]
    stand.pipe.forget("a")
    stand.pipe.call("ask")
    assert len(heard) == 2


def test_a_long_message_is_written_whole():
    stand = Stand({"ask": [{"result": {}}]})
    stand.pipe.call("ask", {"text": "x" * 1_000_000})
    assert len(stand.asked[0]["params"]["text"]) == 1_000_000


def test_refusals_silence_and_death_are_errors():
    with pytest.raises(BrowserError, match="ask: no such node"):
        Stand({"ask": [{"error": {"code": -1, "message": "no such node"}}]}).pipe.call("ask")
    with pytest.raises(BrowserError, match=r"ask: no answer of the browser within 0\.1 seconds"):
        Stand({}, seconds=0.1).pipe.call("ask")
    with pytest.raises(BrowserError, match="die: the browser is gone; it died of boredom"):
        Stand({}).pipe.call("die")
    stand = Stand({"ask": [{"result": {}}]})
    stand.pipe.closed = True
    with pytest.raises(BrowserError, match="was ended"):
        stand.pipe.call("ask")


# ---- the keeper, with a program that is no browser ------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path):
    """(keeper's process, ids of what it started), for a program with a child of its own."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 300 &\nsleep 300\n")
    program.chmod(0o755)
    reader, writer = os.pipe()
    command = [sys.executable, "-I", "-S", keeper.__file__, str(reader), str(writer), str(1 << 30), "60", str(program)]
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "SECRET": "x"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(reader, writer), start_new_session=True, env=environment
    )
    os.close(reader)
    os.close(writer)
    assert comes_true(lambda: len(below(process.pid)) == 3), "the program and its two children"
    yield process, below(process.pid)
    for pid in alive([process.pid, *below(process.pid)]):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def profiles(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob(f"{keeper.PREFIX}*"))


def test_the_browser_ends_with_its_user_and_leaves_nothing(kept, tmp_path: Path):
    process, started = kept
    assert len(profiles(tmp_path)) == 1
    out, _ = process.communicate()  # closes its standard input, as the death of the worker does
    assert json.loads(out) == {"code": -signal.SIGKILL, "said": ""}
    assert comes_true(lambda: not alive(started))
    assert not profiles(tmp_path)


def test_a_browser_that_ends_by_itself_is_told_and_cleaned_up(kept, tmp_path: Path):
    process, started = kept
    program = next(pid for pid in started if os.getpgid(pid) == pid)
    os.kill(program, signal.SIGTERM)
    assert json.loads(process.stdout.readline())["code"] == -signal.SIGTERM
    process.wait()
    assert comes_true(lambda: not alive(started))
    assert not profiles(tmp_path)


def test_a_browser_dies_with_its_keeper(kept):
    process, started = kept
    program = next(pid for pid in started if os.getpgid(pid) == pid)
    os.kill(process.pid, signal.SIGKILL)
    assert comes_true(lambda: not alive([program]))
    os.killpg(program, signal.SIGKILL)


def test_the_browser_gets_no_variable_but_those_it_needs(kept):
    _, started = kept
    variables = {pair.partition("=")[0] for pid in started for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair}
    assert variables <= {"PATH", "HOME", "TMPDIR", "TZ", "LANG", "PWD", "SHLVL", "OLDPWD", "_", *keeper.KEPT}
    limits = Path(f"/proc/{started[0]}/limits").read_text()
    assert str(1 << 30) in next(line for line in limits.splitlines() if line.startswith("Max data size"))


def test_a_program_that_does_not_start_is_an_error_that_says_why(tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(BrowserError, match=r"exited with status 3 and said:\nno display"):
        Browser(program=str(broken), start=20.0)
    with pytest.raises(BrowserError, match=r"nowhere cannot be started"):
        Browser(program=str(tmp_path / "nowhere"), start=20.0)
