"""A rollout server over HTTP: who may ask, what is taken in, and what becomes of answers when weights come or the engine ends."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.support.rollout_stand_in import Engine, Served, made_up, serving
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm import endpoint as endpoint_module
from vlmrl.extras.vllm.carrier import packed
from vlmrl.extras.vllm.endpoint import MediaMemory, Plugin
from vlmrl.extras.vllm.inputs import Placed, PlacedMedium, Version
from vlmrl.extras.vllm.remote import Lost, Remote
from vlmrl.extras.vllm.secret import made_token, read_token
from vlmrl.extras.vllm.wire import PREFIX, TYPE, GenerateRequest, ask_message
from vlmrl.types import GenerationSettings
from vlmrl.web.guard import Room

VERSION = Version(policy=1, vision=1, whole=5)
TOKEN = "a-token-of-some-length"


@pytest.fixture
def served() -> Iterator[Served]:
    with serving("Model") as out:
        yield out


@pytest.fixture
def remote(served: Served) -> Iterator[Remote]:
    out = Remote(served.address, token=None)
    yield out
    out.close()


def question(seeds: tuple[int, ...] = (1, 2), **changes: object) -> GenerateRequest:
    ask = GenerateRequest(
        placed=Placed(ids=(5, 6, 7)),
        version=VERSION,
        settings=GenerationSettings(max_new_tokens=8),
        seeds=seeds,
        ends=(1,),
        forbidden=(),
    )
    return replace(ask, **changes)  # pyright: ignore


def filled(remote: Remote, version: Version = VERSION) -> None:
    """Weights of a version, without a policy."""
    assert begun(remote, "load") is None
    assert remote.part(*packed([("w", torch.ones(3))])) is None
    assert not isinstance(remote.reports(), Lost)
    assert remote.commit(version) is None


def begun(remote: Remote, load: str) -> Lost | None:
    return remote.health() or remote.begin(load, language_only=True, device=torch.device("cpu"))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def asked(remote: Remote, ask: GenerateRequest) -> dict[str, Any] | Lost:
    return remote.post("generate", ask_message(ask, {}))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


# ---- who may ask -------------------------------------------------------------------------------------------------------


def test_without_the_token_nothing_is_answered_not_even_by_routes_of_vllm(token: Path) -> None:
    with serving("Model", token=str(token)) as served:
        url = f"http://{served.address}"
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}):
            assert httpx.get(f"{url}{PREFIX}health", headers=headers).status_code == 401
            assert httpx.post(f"{url}{PREFIX}weights/begin", headers=headers, content=b"").status_code == 401
            assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 401
            assert httpx.post(f"{url}/collective_rpc", headers=headers, json={"method": "x"}).status_code == 401
        for wrong in (None, "another-token-of-some-length"):
            with pytest.raises(ConfigError, match=r"rollout\.vllm\.token_file: the server at 127"):
                Remote(served.address, token=wrong).health()
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {TOKEN}"}).text == "of vLLM"
        right = Remote(served.address, token=TOKEN)
        filled(right)
        assert not isinstance(asked(right, question()), Lost)


def test_it_does_not_answer_elsewhere_without_a_token(token: Path) -> None:
    async def opened(host: str, file: Path | None) -> None:
        Plugin().open(Engine("Model"), host=host, file=None if file is None else str(file))

    for host in ("0.0.0.0", "", "10.0.0.7"):
        with pytest.raises(ConfigError, match=r"whoever reaches this port could change the weights; give a token"):
            asyncio.run(opened(host, None))
        asyncio.run(opened(host, token))
    asyncio.run(opened("127.0.0.1", None))
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="VLMRL_TOKEN_FILE: others can read"):
        asyncio.run(opened("127.0.0.1", token))


def test_tokens_are_made_once_and_are_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = made_token(path, "--token-file")
    assert len(token) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert made_token(path, "--token-file") == read_token(path, "x") == token
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"x: others can read .*token; run: chmod 600"):
        read_token(path, "x")
    for text in ("short", "two words of some length", "ü" * 20):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=r"^x: "):
            read_token(path, "x")
    with pytest.raises(ConfigError, match="x: cannot read"):
        read_token(tmp_path / "none", "x")


def test_pages_of_a_browser_and_what_is_no_message_are_refused(served: Served) -> None:
    url, own = f"http://{served.address}{PREFIX}", {"Content-Type": TYPE}
    assert httpx.post(f"{url}generate", content=b"x").status_code == 415
    assert httpx.post(f"{url}generate", content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415
    assert b"no question" in httpx.post(f"{url}generate", content=b"x", headers=own).content
    assert httpx.post(f"{url}weights/begin", content=b"x", headers=own).status_code == 400
    assert httpx.post(f"{url}other", content=b"x", headers=own).status_code == 404
    assert httpx.get(f"http://{served.address}/").status_code == 404
    assert httpx.options(f"{url}generate").status_code == 405
    assert httpx.post(f"{url}generate", content=iter([b"x"]), headers=own).status_code == 413, "the length has to be given"
    served.desk.room = Room(most_bytes=10, at_once=2)
    assert httpx.post(f"{url}generate", content=b"x" * 11, headers=own).status_code == 413
    assert served.engine.calls == []


def test_pages_that_reach_loopback_under_another_name_are_refused(token: Path) -> None:
    """Such a page is of the same origin, so it may send any content type; it would need no token."""
    with serving("Model") as served:
        url, own = f"http://{served.address}{PREFIX}", {"Content-Type": TYPE}
        for headers in ({"Host": "evil.example:7000"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert httpx.get(f"{url}health", headers=headers).status_code == 403
            assert httpx.post(f"{url}weights/begin", headers=own | headers, content=b"").status_code == 403
            assert httpx.get(f"http://{served.address}/v1/models", headers=headers).status_code == 403
        assert served.engine.calls == []
        assert httpx.get(f"{url}health", headers={"Host": f"localhost:{served.address.rpartition(':')[2]}"}).status_code == 200
    with serving("Model", token=str(token)) as served:  # whoever has the token may reach it under any name
        told = {"Authorization": f"Bearer {TOKEN}", "Host": "gpu-7.example:7000"}
        assert httpx.get(f"http://{served.address}{PREFIX}health", headers=told).status_code == 200


def test_a_length_that_is_no_number_is_refused(served: Served) -> None:
    for length in ("9" * 5000, "-1", "1e3"):
        with socket.create_connection(("127.0.0.1", int(served.address.rpartition(":")[2]))) as line:
            head = f"POST {PREFIX}generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\n\r\n"
            line.sendall(head.encode())
            assert line.makefile("rb").readline().split()[1] in (b"400", b"413"), length


def test_what_is_under_way_has_bounds_in_number_and_in_bytes(served: Served, remote: Remote) -> None:
    filled(remote)
    served.engine.free.clear()
    served.desk.room = Room(most_bytes=3000, at_once=2)
    whole = [ask_message(question(seeds), {}) for seeds in ((1, 2), tuple(range(600)))]
    assert len(whole[0]) < 1000 < 2001 < len(whole[1]) < 3000
    url, own = f"http://{served.address}{PREFIX}", {"Content-Type": TYPE}

    def ask(data: bytes) -> threading.Thread:
        thread = threading.Thread(target=lambda: httpx.post(f"{url}generate", content=data, headers=own, timeout=20))
        thread.start()
        until(lambda: len(served.engine.asks) == count)
        return thread

    count = 1
    first = ask(whole[1])
    assert httpx.post(f"{url}generate", content=b"x" * 1000, headers=own).status_code == 503, "their bytes together"
    assert httpx.post(f"{url}generate", content=b"x" * 3001, headers=own).status_code == 413
    count = 2
    second = ask(whole[0])
    assert httpx.post(f"{url}generate", content=b"", headers=own).status_code == 503, "their number"
    served.engine.free.set()
    first.join(10)
    second.join(10)
    until(lambda: httpx.post(f"{url}generate", content=b"x" * 3000, headers=own).status_code == 200)


# ---- weights and answers -----------------------------------------------------------------------------------------------


def test_nothing_is_answered_before_weights_are_there_and_of_the_version_asked_for(served: Served, remote: Remote) -> None:
    assert remote.health() is None
    assert remote.held is None
    lost = asked(remote, question())
    assert isinstance(lost, Lost)
    assert lost.reason == "version"
    filled(remote)
    assert remote.health() is None
    assert remote.held == VERSION
    assert remote.ask(question(), lambda keys: {}, stop=lambda: False) != []
    for other in (Version(policy=2, vision=1, whole=5), Version(policy=1, vision=2, whole=5), Version(policy=1, vision=1, whole=6)):
        lost = asked(remote, question(version=other))
        assert isinstance(lost, Lost)
        assert lost.reason == "version"
    assert len(served.engine.asks) == 1


def test_answers_have_their_own_seeds(served: Served, remote: Remote) -> None:
    filled(remote)
    answers = remote.ask(question((4, 9, 4)), lambda keys: {}, stop=lambda: False)
    assert not isinstance(answers, Lost)
    assert [a.ids for a in answers] == [made_up(Placed(ids=(5, 6, 7)), {}, seed, 1) for seed in (4, 9, 4)]
    assert {a.prompt_ids for a in answers} == {(5, 6, 7)}


def test_weights_end_what_is_being_answered(served: Served, remote: Remote) -> None:
    filled(remote)
    served.engine.free.clear()
    got: list[dict[str, Any] | Lost] = []
    asking = threading.Thread(target=lambda: got.append(asked(remote, question())))
    asking.start()
    until(lambda: bool(served.engine.asks))
    other = Remote(served.address, token=None)
    assert begun(other, "next") is None
    asking.join(10)
    assert isinstance(got[0], Lost)
    assert got[0].reason == "version"
    assert served.engine.dropped == [1, 2]
    assert other.health() is None
    assert other.held is None, "half of the weights are no version"


def test_two_trainers_do_not_mix_their_weights(served: Served, remote: Remote) -> None:
    assert begun(remote, "one") is None
    other = Remote(served.address, token=None)
    assert begun(other, "two") is None
    assert served.engine.calls == ["join", "start", "begin", "end", "finish", "join", "start", "begin"], "one update ends before the next"
    assert served.engine.versions == ["none"]
    for lost in (remote.part(*packed([("w", torch.ones(3))])), remote.reports(), remote.commit(VERSION)):
        assert isinstance(lost, Lost)
        assert lost.reason == "load"
    assert other.part(*packed([("w", torch.ones(3))])) is None
    other.close()


def test_a_server_that_has_met_another_trainer_meets_this_one_again(served: Served, remote: Remote) -> None:
    filled(remote)
    other = Remote(served.address, token=None)
    filled(other, replace(VERSION, whole=6))
    assert remote.carrier is not None
    filled(remote)
    assert served.engine.calls.count("join") == 3
    filled(remote)
    assert served.engine.calls.count("join") == 3, "they meet once as long as nobody comes between"
    other.close()


def test_a_tensor_that_the_engine_refuses_is_in_its_report_and_the_rest_is_taken(served: Served, remote: Remote) -> None:
    assert begun(remote, "one") is None
    assert remote.part(*packed([("unknown", torch.ones(3))])) is None
    assert remote.part(*packed([("w", torch.ones(3))])) is None
    reports = remote.reports()
    assert not isinstance(reports, Lost)
    assert "no module or parameter named 'unknown'" in reports[0]["error"]
    filled(remote)
    assert remote.held == VERSION, "the engine is well"


def test_no_update_stays_open_whatever_came_of_it(served: Served, remote: Remote) -> None:
    """vLLM refuses the next one otherwise, until it is started anew."""
    for steps in range(4):
        assert begun(remote, f"load {steps}") is None
        for step in (lambda: remote.part(*packed([("w", torch.ones(3))])), remote.reports, lambda: remote.commit(VERSION))[:steps]:
            assert not isinstance(step(), Lost)
    filled(remote)
    assert served.engine.calls.count("start") == served.engine.calls.count("finish") == 5
    assert served.engine.versions == ["none", "none", "none", VERSION.salt, VERSION.salt]


def test_an_asker_that_goes_takes_its_answers_along(served: Served, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "SECOND", 0.02)
    filled(remote)
    served.engine.free.clear()
    lost = remote.post("generate", ask_message(question(), {}), stop=lambda: bool(served.engine.asks))
    assert isinstance(lost, Lost)
    assert lost.reason == "stopped"
    until(lambda: served.engine.dropped == [1, 2])


def test_an_engine_that_ends_is_heard_of_by_all_askers(served: Served, remote: Remote) -> None:
    filled(remote)
    served.engine.fails = True
    for _ in range(2):
        lost = asked(remote, question())
        assert isinstance(lost, Lost)
        assert lost.reason == "ended"
    health = remote.health()
    assert isinstance(health, Lost)
    assert health.reason == "ended"


def test_a_stuck_engine_does_not_pass_for_a_slow_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "SECOND", 0.02)
    remote = Remote(served.address, token=None, quiet=0.4)
    filled(remote)
    served.engine.free.clear()
    beats: list[int] = []
    threading.Timer(0.8, served.engine.free.set).start()
    slow = remote.post("generate", ask_message(question(), {}), beat=lambda: beats.append(1))
    assert not isinstance(slow, Lost), "slow, and says that it lives"
    assert len(beats) > 2
    monkeypatch.setattr(endpoint_module, "STUCK", -1.0)
    served.engine.free.clear()
    stuck = remote.post("generate", ask_message(question(), {}))
    assert isinstance(stuck, Lost)
    assert stuck.reason == "quiet"
    served.engine.free.set()


def test_an_engine_that_answers_no_question_of_health_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "PULSE", 0.01)
    monkeypatch.setattr(endpoint_module, "STUCK", 0.5)
    with serving("Model") as served:
        time.sleep(0.7)
        assert served.desk.alive
        served.engine.stuck = True
        until(lambda: not served.desk.alive)
        served.engine.stuck = False
        until(lambda: served.desk.alive)


# ---- media -------------------------------------------------------------------------------------------------------------


def shown(key: str, rows: int = 4) -> Placed:
    medium = PlacedMedium(kind="image", key=key, grid=(1, 2, rows // 2), start=0, end=1)
    return Placed(ids=(5, 6, 7), media=(medium,))


def test_media_are_sent_once_and_again_when_they_are_forgotten(served: Served, remote: Remote) -> None:
    filled(remote)
    sent: list[list[str]] = []

    def patches(keys: object) -> dict[str, np.ndarray]:
        sent.append(list(keys))  # pyright: ignore
        return {key: np.full((4, 6), len(sent), dtype=np.uint8) for key in sent[-1]}

    for _ in range(2):
        answers = remote.ask(question(placed=shown("a")), patches, stop=lambda: False)
        assert not isinstance(answers, Lost)
        assert answers[0].ids == made_up(shown("a"), {"a": np.full((4, 6), 1, dtype=np.uint8)}, 1, 1)
    assert sent == [["a"], []]
    served.desk.media = MediaMemory()
    assert not isinstance(remote.ask(question(placed=shown("a")), patches, stop=lambda: False), Lost)
    assert sent == [["a"], [], [], ["a"]], "it says what it misses"
    newcomer = Remote(served.address, token=None)
    assert not isinstance(newcomer.ask(question(placed=shown("b")), patches, stop=lambda: False), Lost)
    assert sent[-1] == ["b"]


def test_patches_that_are_not_those_of_the_grid_do_not_reach_the_engine(served: Served, remote: Remote) -> None:
    filled(remote)
    patches = {"a": np.zeros((4, 6), dtype=np.uint8)}
    lost = remote.post("generate", ask_message(question(placed=shown("a", rows=6)), patches))
    assert isinstance(lost, Lost)
    assert lost.reason == "refused"
    assert "does not have the patches of its grid" in lost.detail
    one, tensors = {"b": np.zeros((4, 6), dtype=np.uint8)}, {"c": np.zeros(24, dtype=np.uint8)}
    for argued, given in ((False, tensors), (True, one)):
        served.desk._argued = argued
        lost = remote.post("generate", ask_message(question(placed=shown(next(iter(given)))), given))
        assert isinstance(lost, Lost)
        assert "or is not what this model's processor makes" in lost.detail
    assert served.engine.asks == []


def test_the_memory_of_media_has_a_bound() -> None:
    memory = MediaMemory(100)
    one = np.zeros((1, 60), dtype=np.uint8)
    assert set(memory.completed({"a": one}, ["a"])) == {"a"}
    assert set(memory.completed({"b": one}, ["a", "b"])) == {"a", "b"}, "what was asked for now is there"
    assert set(memory.completed({}, ["a", "b"])) == {"b"}
    assert set(memory.completed({"c": np.zeros((1, 200), dtype=np.uint8)}, ["c"])) == {"c"}
    assert memory.completed({}, ["b", "c"]) == {}


def test_health_says_what_runs_there(served: Served, remote: Remote) -> None:
    filled(remote)
    told = httpx.get(f"http://{served.address}{PREFIX}health").json()
    assert told["version"] == asdict(VERSION)
    assert (told["architecture"], told["max_model_len"], told["alive"]) == ("Model", 4096, True)


def test_a_line_that_breaks_is_met_anew_and_its_weights_are_of_no_version(served: Served, remote: Remote) -> None:
    filled(remote)
    assert begun(remote, "next") is None
    assert served.engine.carrier is not None
    served.engine.carrier.leave()
    served.engine.carrier = None
    lost = remote.part(*packed([("w", torch.ones(2**22))]))
    assert isinstance(lost, Lost)
    assert lost.reason == "cut"
    assert remote.carrier is None
    lost = remote.reports()
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.detail) == ("cut", "this worker has met no trainer")
    assert remote.health() is None
    assert remote.held is None
    filled(remote)
    assert served.engine.calls.count("join") == 2
    assert remote.held == VERSION


# ---- processes that end --------------------------------------------------------------------------------------------------

SERVER = """
import multiprocessing, time
from vlmrl.extras.vllm import hosted

def engine(said):
    hosted.end_with_server()
    said.put("up")
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    made = context.Process(target=engine, args=(said,))
    made.start()
    said.get()
    print(made.pid, flush=True)
    time.sleep(600)
"""


def test_an_engine_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, str(tmp_path / "server.py")], stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        engine = int(server.stdout.readline())
        server.kill()
    end = time.monotonic() + 60
    while Path(f"/proc/{engine}").exists() and "\nState:\tZ" not in Path(f"/proc/{engine}/status").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


ENDING = """
import sys
from types import SimpleNamespace as Fields
from vlmrl.extras.vllm.hosted import VllmAsync

calls = []
config = Fields(parallel_config=Fields(data_parallel_size=1))
client = Fields(vllm_config=config, errored=False, shutdown=lambda timeout=0: calls.append(timeout))
VllmAsync(client).fail_with(70)
if sys.argv[1] == "ended":
    client.errored = True
client.shutdown(timeout=3)
client.errored = True  # as it is once it has been shut down
client.shutdown()
print(calls)
"""


@pytest.mark.parametrize(("how", "code"), [("ended", 70), ("asked", 0)])
def test_a_server_fails_where_its_engine_ends_by_itself(how: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING, how], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "[3, 0]\n"), done.stderr
