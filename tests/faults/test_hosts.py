"""Two trainers and a judge, each on a host of its own: a link that is cut, a stopped or killed process, a full disk. Within 15 seconds
everyone has ended and said why, and the same command then ends with the bits of a run that nothing disturbed.

The hosts are network namespaces (`tests.support.netns`).
"""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_judge_training import config_for
from tests.support import runs
from tests.support.host_ranks import Training, environment
from tests.support.netns import Hosts, unavailable

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "there are namespaces")]
SECONDS = 15.0
JUDGE, PORT = 2, 8000
SERVE = """
import threading
from tests.faults.test_judge_training import honest
from tests.support.judge_server import JudgeServer
with JudgeServer(otherwise=honest, port=8000):
    print("READY", flush=True)
    threading.Event().wait()
"""
TUNNEL = """
import asyncio, sys

async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def join(reader, writer):
    try:
        to, back = await asyncio.open_connection(sys.argv[1], 8000)
    except OSError:
        return writer.close()
    await asyncio.gather(copy(reader, back), copy(to, writer))

async def main():
    async with await asyncio.start_server(join, "127.0.0.1", 8000) as server:
        await server.serve_forever()

asyncio.run(main())
"""
"""A judge on another machine is asked through https or a tunnel; this is the tunnel."""
Whole = tuple[Hosts, dict[str, Any], dict[str, Any]]
"""The hosts, a config, and the outcome of its undisturbed run."""


def elsewhere(config: dict[str, Any], root: Path) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    return out


def finish(hosts: Hosts, config: dict[str, Any]) -> dict[str, Any]:
    """Run the command to its end: the outcome."""
    training = Training(hosts, config)
    assert training.codes(600) == [0, 0], training.text(0)[-3000:] + training.text(1)[-3000:]
    return runs.outcome(config)


@pytest.fixture(scope="module")
def whole(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with Hosts(3) as hosts:
        folder = tmp_path_factory.mktemp("whole")
        log = folder / "judge.log"
        hosts.start(JUDGE, [sys.executable, "-c", SERVE], env=environment(), log=log)
        end = time.monotonic() + 90
        while "READY" not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        for host in range(2):
            hosts.start(host, [sys.executable, "-c", TUNNEL, hosts.addresses[JUDGE]], env=environment(), log=folder / f"tunnel{host}.log")
        config = config_for(tiny_files, folder, f"http://127.0.0.1:{PORT}/v1")
        config["checkpoint"]["every"] = 1
        yield hosts, config, finish(hosts, config)


def wait_for(path: Path, training: Training, timeout: float = 400) -> None:
    end = time.monotonic() + timeout
    while not path.exists():
        assert training.running, training.text(0)[-3000:] + training.text(1)[-3000:]
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("hit", [0, 1])
@pytest.mark.parametrize("kind", ["link", "stop", "kill"])
def test_a_host_is_lost(whole: Whole, kind: str, hit: int, tmp_path: Path) -> None:
    """While it is at work in its second step, and the other one waits for it."""
    hosts, config, expected = whole
    mine = elsewhere(config, tmp_path / "run")
    training = Training(hosts, mine, fault=f"step.before_update@2:hang#rank={hit}")
    wait_for(runs.run_dir(mine) / "checkpoints" / "step-00000001" / "manifest.json", training)
    time.sleep(5.0)  # into the second step, and its signs of life with it
    began = time.monotonic()
    if kind == "link":
        hosts.cut(hit)
    else:
        training.ranks[hit].send_signal(signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
    try:
        codes = training.codes(SECONDS)
        took = time.monotonic() - began
    finally:
        hosts.mend(hit)
    assert codes[1 - hit] == 70
    assert codes[hit] == (70 if kind == "link" else -signal.SIGKILL)
    print(f"{kind} of rank {hit}: {took:.1f} s")
    line = next(line for line in training.text(1 - hit).splitlines() if line.startswith("error: "))
    why = {"link": "no sign of life for", "stop": "its process has been stopped (SIGSTOP)", "kill": "its process has ended without a word"}
    assert f"rank {hit} (host {os.uname().nodename}, pid {training.ranks[hit].pid})" in line
    assert why[kind] in line
    assert "stage 'rl', step 2" in line
    if kind == "link":
        assert f"rank {1 - hit} (host " in next(line for line in training.text(hit).splitlines() if line.startswith("error: "))
    end = time.monotonic() + 5
    while [len(hosts.pids(host)) for host in range(2)] != [1, 1]:  # the tunnels
        assert time.monotonic() < end, "something is left behind"
        time.sleep(0.1)
    assert finish(hosts, mine) == expected


def test_a_disk_that_is_full_on_one_host(whole: Whole, tmp_path: Path) -> None:
    hosts, config, expected = whole
    mine = elsewhere(config, tmp_path / "run")
    journal = runs.run_dir(mine) / "journal"
    journal.mkdir(parents=True)
    training = Training(hosts, mine, full=journal)
    assert training.ranks[1].wait(400) == 74, training.text(1)[-2000:]
    began = time.monotonic()
    code = training.ranks[0].wait(SECONDS)
    print(f"full disk: {time.monotonic() - began:.1f} s after the host whose disk is full")
    assert code == 74 or (code == 70 and "No space left on device" in training.text(0)), training.text(0)[-2000:]
    said = (Path(mine["run"]["root"]) / "error.txt").read_text()
    assert "No space left on device" in said
    assert str(journal) in said
    assert finish(hosts, mine) == expected


def test_a_judge_that_is_slow_is_waited_for(whole: Whole, tmp_path: Path) -> None:
    """Its link is cut for longer than a rank may be silent and a collective may take: neither is what happens."""
    hosts, config, expected = whole
    mine = elsewhere(config, tmp_path / "run")
    mine["stages"][0]["rewards"][0]["endpoint"] |= {"max_wait": 300.0, "timeout": 2.0}
    os.environ["VLMRL_RANK_PATIENCE_SECONDS"] = "5"
    try:
        training = Training(hosts, mine)
        wait_for(runs.run_dir(mine) / "journal" / "step-00000000.rank-1.journal", training)
        hosts.cut(JUDGE)
        time.sleep(30.0)
        assert [rank.poll() for rank in training.ranks] == [None, None], training.text(0)[-2000:]
    finally:
        del os.environ["VLMRL_RANK_PATIENCE_SECONDS"]
        hosts.mend(JUDGE)
    assert training.codes(600) == [0, 0]
    assert runs.outcome(mine)["weights"] == expected["weights"]
    assert "is lost" not in training.text(0) + training.text(1)


def test_the_launcher_joins_two_hosts(whole: Whole, tmp_path: Path) -> None:
    """`vlmrl train --gpus 1 --nodes 2` on each; one is killed, the launchers start both again: the bits of an undisturbed run."""
    hosts, config, expected = whole
    mine = elsewhere(config, tmp_path / "run")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(mine))  # JSON is YAML
    command = [sys.executable, "-m", "vlmrl", "train", "--gpus", "1", "--nodes", "2", "--host", hosts.addresses[0], "--restarts", "2"]
    env = environment(VLMRL_FAULT="step.after_update@2:kill#rank=1")
    logs = [tmp_path / f"host{host}.log" for host in range(2)]
    began = [hosts.start(host, [*command, str(recipe)], env=env, log=logs[host]) for host in range(2)]
    for host, process in enumerate(began):
        try:
            assert process.wait(900) == 0, logs[host].read_text()[-4000:]
        except subprocess.TimeoutExpired:
            pytest.fail(logs[0].read_text()[-3000:] + logs[1].read_text()[-3000:])
    assert runs.outcome(mine)["weights"] == expected["weights"]
