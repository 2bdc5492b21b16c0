"""Area 1: kill and resume. A disturbed run must end with the bits of an undisturbed one; also a killed media worker and two ranks."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.drill.result import Drill, Ended, Result, judge, outcome, run
from tests.faults.test_resume_methods import STATEFUL
from tests.support import runs
from vlmrl import faults

AREA, WORKER, RANKS = "1 kill and resume", "1 media worker killed", "1 two ranks"
Config = dict[str, Any]
LONGEST = 12.0
"""Seconds after the lock within which a signal comes."""
RANK = """
import json, sys
from tests.support import preload
from tests.support.runs import _run
_run(json.load(open(sys.argv[1])), None)
"""


def variants(drill: Drill) -> dict[str, Config]:
    """Configs by name: plain, methods with memories, and adapters with workers."""
    out = {"plain": runs.small_config(*drill.files, drill.root("plain"))}
    memories = copy.deepcopy(STATEFUL["moments_multipliers_replay"])
    out["memories"] = runs.small_config(*drill.files, drill.root("memories"), **memories)
    sampling = {"sampler": {"name": "vas"}, "filters": [{"name": "selective_sample_buffer"}], "dynamic_sampling": {"max_batches": 3}}
    adapters = runs.small_config(*drill.files, drill.root("adapters"), **sampling, budget={"name": "knapsack", "low": 2, "high": 8})
    adapters["model"]["lora"] = {"rank": 4, "alpha": 8, "vision": True}
    adapters["media"]["workers"] = 2
    adapters["stages"][1]["freeze"] = []
    return out | {"adapters": adapters}


def disturbances(drill: Drill, chance: random.Random) -> Iterator[tuple[str, Callable[[Config], None]]]:
    """(name, what happens to a run before it is started for the last time)."""
    for n in range(drill.choose(2, 5)):
        yield f"SIGKILL at random #{n}", lambda config: _signalled(config, chance, [signal.SIGKILL])
    if not drill.quick:
        yield "SIGKILL three times", lambda config: [_signalled(config, chance, [signal.SIGKILL]) for _ in range(3)]
        yield "SIGINT", lambda config: _signalled(config, chance, [signal.SIGINT])
        yield "SIGSTOP, SIGCONT, SIGKILL", lambda config: _signalled(config, chance, [signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL])
    yield "SIGTERM", lambda config: _signalled(config, chance, [signal.SIGTERM])
    yield "SIGTERM twice", lambda config: _signalled(config, chance, [signal.SIGTERM, signal.SIGTERM])
    points = list(faults.POINTS)
    for point in chance.sample(points, drill.choose(2, len(points))):
        yield f"killed at {point}", lambda config, point=point: run(config, f"{point}@1:kill")
    yield "journal torn", lambda config: _after_kill(config, "rollout.chunk@3", "journal/*", lambda raw: raw[:-7])
    yield "journal with a flipped bit", lambda config: _after_kill(config, "rollout.chunk@3", "journal/*", flipped)
    yield (
        "checkpoint with a flipped bit",
        lambda config: _after_kill(config, "step.before_update@6", "checkpoints/step-*/weights.safetensors", flipped),
    )
    yield "all file times 1970", lambda config: (run(config, "step.before_update@6:kill"), _old(runs.run_dir(config)))
    yield "run folder moved", _moved


def flipped(raw: bytes) -> bytes:
    """One bit in the middle the other way round."""
    out = bytearray(raw)
    out[len(out) // 2] ^= 1
    return bytes(out)


def resume(drill: Drill) -> Iterator[Result]:
    """All disturbances of all variants."""
    for name, config in variants(drill).items():
        if drill.quick and name != "plain":
            continue
        ended = run(config)
        if ended.code != 0:
            yield Result(area=AREA, case=f"{name}: undisturbed", verdict="crash", note=f"exit {ended.code}: {ended.message[:300]}")
            continue
        expected = outcome(config)
        chance = random.Random(drill.seed)
        for number, (case, disturb) in enumerate(disturbances(drill, chance)):
            mine = copy.deepcopy(config)
            mine["run"]["root"] = str(drill.root(f"{name}-{number}"))
            disturb(mine)
            yield judge(AREA, f"{name}: {case}", run(mine), mine, expected, must_end=True)
            shutil.rmtree(mine["run"]["root"])


def _started(config: Config) -> Any:
    child = runs.start(config)
    lock, end = runs.run_dir(config) / "LOCK", time.monotonic() + 120
    while not (lock.exists() and lock.read_text()) and child.is_alive() and time.monotonic() < end:
        time.sleep(0.01)
    return child


def _signalled(config: Config, chance: random.Random, signals: list[signal.Signals]) -> None:
    child = _started(config)
    child.join(chance.uniform(0, LONGEST))
    for number in signals:
        if child.is_alive():
            os.kill(child.pid, number)
            child.join(1.0 if number == signal.SIGSTOP else 0.2)
    child.join(300)
    if child.is_alive():
        child.kill()
        child.join()


def _after_kill(config: Config, point: str, pattern: str, change: Callable[[bytes], bytes]) -> None:
    run(config, f"{point}:kill")
    victim = max(runs.run_dir(config).glob(pattern))
    victim.write_bytes(change(victim.read_bytes()))


def _old(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (0, 0), follow_symlinks=False)


def _moved(config: Config) -> None:
    run(config, "step.before_update@6:kill")
    root = Path(config["run"]["root"])
    (root / "elsewhere").mkdir()
    runs.run_dir(config).rename(root / "elsewhere" / config["run"]["name"])
    config["run"]["root"] = str(root / "elsewhere")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(one) for task in tasks.glob("*/children") for one in task.read_text().split()]


def media_worker(drill: Drill) -> Iterator[Result]:
    """One SIGKILL for a worker that decodes, as the kernel does when memory is short: nobody is to blame, so nothing may change."""
    config = runs.small_config(*drill.files, drill.root("worker"))
    config["media"] |= {"workers": 1, "prefetch": False}
    assert run(config).code == 0
    expected = outcome(config)
    for number in range(drill.choose(1, 6)):
        mine = copy.deepcopy(config)
        mine["run"]["root"] = str(drill.root(f"worker-{number}"))
        child, killed = _started(mine), 0
        end = time.monotonic() + 60
        wait = random.Random(drill.seed * 100 + number).uniform(0, 3)
        while child.is_alive() and not killed and time.monotonic() < end:
            for pid in _children(child.pid):
                command = Path(f"/proc/{pid}/cmdline")
                if command.exists() and b"media" in command.read_bytes():
                    time.sleep(wait)
                    os.kill(pid, signal.SIGKILL)
                    killed = pid
                    break
            time.sleep(0.02)
        child.join(300)
        error = Path(mine["run"]["root"], "error.txt")
        ended = Ended(child.exitcode if child.exitcode is not None else 124, error.read_text() if error.exists() else "")
        case = f"after {wait:.1f} s" if killed else "no worker was seen"
        yield judge(WORKER, case, ended, mine, expected, must_end=True)


def two_ranks(drill: Drill) -> Iterator[Result]:
    """Two gloo processes: one is killed, or stopped for a while; the job ends, and the next start goes on."""
    config = runs.small_config(*drill.files, drill.root("ranks"))
    if any(code != 0 for code in _job(config)):
        yield Result(area=RANKS, case="undisturbed", verdict="crash")
        return
    expected = outcome(config)
    chance = random.Random(drill.seed)
    kinds = [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGTERM)]
    for number, (victim, sent) in enumerate(kinds[: drill.choose(1, 4)]):
        mine = copy.deepcopy(config)
        mine["run"]["root"] = str(drill.root(f"ranks-{number}"))
        codes = _job(mine, victim=victim, sent=sent, after=chance.uniform(1, LONGEST))
        if 124 in codes:
            yield Result(area=RANKS, case=f"{sent.name} to rank {victim}", verdict="crash", note="the other rank did not end")
            continue
        again = _job(mine)
        yield judge(RANKS, f"{sent.name} to rank {victim}", Ended(max(again), ""), mine, expected, must_end=True)


def _job(config: Config, victim: int = 0, sent: signal.Signals | None = None, after: float = 0.0) -> list[int]:
    """Exit codes of two ranks. The victim gets a signal some seconds after the lock; 124 for a rank that does not end."""
    root = Path(config["run"]["root"])
    (root / "rank.py").write_text(RANK)
    (root / "config.json").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(root / "rank.py"), str(root / "config.json")]
    ranks: list[subprocess.Popen[bytes]] = []
    for rank in range(2):
        with (root / f"rank{rank}.log").open("w") as log:
            env = os.environ | given | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env))
    if sent is not None:
        end = time.monotonic() + 120
        while not (runs.run_dir(config) / "LOCK").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(after)
        if ranks[victim].poll() is None:
            ranks[victim].send_signal(sent)
        if sent == signal.SIGSTOP:
            time.sleep(5)
            ranks[victim].send_signal(signal.SIGCONT)
    codes: list[int] = []
    for process in ranks:
        try:
            codes.append(process.wait(timeout=300))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(124)
    return codes
