"""A judge that is down, slow or lying during training, then up again: nothing that was sampled is lost and no score is made up; the
run waits or goes on, or it stops with exit code 69 and the same command ends with the bits of a run that nothing disturbed (W7 to W9).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.judge_server import Act, JudgeServer, Reply, closes, hangs, html, raw, status
from vlmrl.extras.judges.prompts import clean
from vlmrl.rollout.journal import Journal
from vlmrl.run.tracking import read_metrics

Whole = tuple[dict[str, Any], dict[str, Any], int]
"""A config, the outcome of its undisturbed run, and how many questions that run asked."""
LAUNCH = """
import json, sys
from tests.support import preload
from tests.support.runs import _run
_run(json.load(open(sys.argv[1])), None)
"""


def opinion(item: dict[str, Any]) -> float:
    """What the honest service says of an input, between -2 and 2: a function of question and response."""
    return hashlib.sha256(json.dumps([item["question"], item["response"]]).encode()).digest()[0] / 64 - 2


def honest(body: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps({"scores": [{"id": one["id"], "score": opinion(one)} for one in body["inputs"]]}).encode())


def wrong_id(body: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps({"scores": [{"id": "0123456789ab", "score": 1.0}]}).encode())


def out_of_range(body: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps({"scores": [{"id": body["inputs"][0]["id"], "score": 1e9}]}).encode())


def config_for(tiny_files: tuple[Path, Path], root: Path, url: str, *, max_wait: float = 60.0, timeout: float = 5.0) -> dict[str, Any]:
    """Three GRPO steps of two chunks with a judged column beside two by rule. An untrained model is enough: every response is judged."""
    endpoint = {"url": url, "model": "scripted", "timeout": timeout, "max_wait": max_wait, "concurrency": 4}
    rewards = [{"name": "reward_model", "endpoint": endpoint, "with_pictures": False}, {"name": "temporal_iou"}, {"name": "format"}]
    config = runs.small_config(*tiny_files, root, steps=3, rewards=rewards, beta=0.0)
    config["eval"] = {"source": None}
    config["stages"] = config["stages"][1:]
    return config


def variant(config: dict[str, Any], root: Path, **endpoint: Any) -> dict[str, Any]:
    """The same run elsewhere; how long it waits is no part of what it computes."""
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["stages"][0]["rewards"][0]["endpoint"] |= endpoint
    return out


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(otherwise=honest) as server:
        yield server


@pytest.fixture(autouse=True)
def _well(judge: JudgeServer) -> Iterator[None]:
    """Each test begins with a judge that answers."""
    recover(judge)
    yield
    recover(judge)


def recover(judge: JudgeServer) -> None:
    judge.script, judge.otherwise, judge.canary = [], honest, None


@pytest.fixture(scope="module")
def whole(judge: JudgeServer, tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    judge.otherwise = honest
    config = config_for(tiny_files, tmp_path_factory.mktemp("whole"), judge.url)
    before = judge.calls
    assert runs.run(config) == 0
    outcome = runs.outcome(config)
    assert all(line["rewards/reward_model/mean"] > 0 and line["grad_norm"] > 0 for line in lines_of(config)), "the judge must count"
    return config, outcome, judge.calls - before


def lines_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]


def replayed(config: dict[str, Any]) -> list[float]:
    return [line["resume/replayed_groups"] for line in lines_of(config)]


def error_of(config: dict[str, Any]) -> str:
    return Path(config["run"]["root"], "error.txt").read_text()


def records(config: dict[str, Any], step: int) -> list[dict[str, Any]]:
    return Journal(runs.run_dir(config) / "journal", step).replay()


DISTURBANCES: tuple[Act, ...] = (
    *(status(500), honest, closes(), html(), honest, raw(b'{"scores": NaN}'), status(429, {"Retry-After": "0"}), honest),
    *(raw(b"[]"), wrong_id, honest, status(503), out_of_range, honest, hangs(), raw(b"\xff\xfe"), honest),
)
"""No two lies in a row, so that none is told to one question three times: then it would be missing, as it should."""


def test_a_judge_that_stumbles_changes_no_bit(whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    """Errors, closed connections, a login page, NaN, silence and single lies: asked again, and the run does not stop."""
    config, expected, asked = whole
    judge.script = list(DISTURBANCES)
    before = judge.calls
    mine = variant(config, tmp_path, timeout=1.0)
    assert runs.run(mine) == 0
    bad = sum(act is not honest for act in DISTURBANCES)
    assert judge.script == []
    assert judge.calls - before == asked + bad
    assert runs.outcome(mine) == expected


def after(requests: int, act: Act, judge: JudgeServer) -> None:
    """From the given question on the judge does this, canaries included."""
    judge.script, judge.otherwise, judge.canary = [honest] * requests, act, act


@pytest.mark.parametrize("act", [closes(), pytest.param(html(), marks=pytest.mark.slow)], ids=["down", "login page"])
def test_an_outage_stops_the_run_and_the_same_command_goes_on(act: Act, whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    """In the second step: nothing sampled is sampled again, nothing that was judged is asked again."""
    config, expected, asked = whole
    mine = variant(config, tmp_path, max_wait=1.5)
    before = judge.calls
    after(asked // 2, act, judge)
    assert runs.run(mine) == 69
    assert "scripted" in error_of(mine)
    assert "run the same command" in error_of(mine)
    step = len(lines_of(mine))
    kept = {record["group"]: record for record in records(mine, step)}
    waiting = [record for record in kept.values() if record["scores"] is None]
    assert waiting, "what was sampled is in the journal, without scores"
    assert all(len(record["rollouts"]) == 4 for record in kept.values())
    recover(judge)
    told = set(judge.answered[before : before + asked // 2])
    middle = judge.calls
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    assert replayed(mine)[step] == len(kept)
    assert not told & set(judge.answered[middle:])
    assert len(judge.answered[middle:]) == asked - len(told)


@pytest.mark.slow
def test_two_outages_in_one_run(whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    config, expected, asked = whole
    mine = variant(config, tmp_path, max_wait=0.5)
    for requests in (0, asked // 3):
        after(requests, closes(), judge)
        assert runs.run(mine) == 69
    recover(judge)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_a_judge_that_comes_back_is_waited_for(whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    config, expected, asked = whole
    mine = variant(config, tmp_path, max_wait=120.0)
    after(asked // 2, closes(), judge)
    child = runs.start(mine)
    wait_until(lambda: any(r["scores"] is None for step in range(3) for r in journal_lines(mine, step)), child)
    judge.stop()
    assert child.is_alive()
    recover(judge)
    judge.start()
    child.join(120)
    assert child.exitcode == 0
    assert runs.outcome(mine) == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 75)], ids=["kill", "term"])
def test_stopped_while_it_waits(number: int, code: int, whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    """Killed, or asked to stop, in the middle of a wait: what was sampled before it is there."""
    config, expected, asked = whole
    mine = variant(config, tmp_path, max_wait=600.0)
    after(asked // 2, closes(), judge)
    child = runs.start(mine)
    wait_until(lambda: any(r["scores"] is None for step in range(3) for r in journal_lines(mine, step)), child)
    os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == code
    recover(judge)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    assert sum(replayed(mine)) >= 2


def journal_lines(config: dict[str, Any], step: int) -> list[dict[str, Any]]:
    """Whole records of a journal that somebody writes at the moment; opening it as a `Journal` would cut what is half there."""
    path = runs.run_dir(config) / "journal" / f"step-{step:08d}.rank-0.journal"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line[18:]) for line in lines[1:] if line.endswith("\n")]


def wait_until(true: Callable[[], bool], child: Any) -> None:
    end = time.monotonic() + 120
    while not true():
        assert child.is_alive(), "the run ended before what was waited for"
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_cannot_be_judged_is_missing_and_counted(
    tiny_files: tuple[Path, Path], whole: Whole, judge: JudgeServer, tmp_path: Path
) -> None:
    """A judge that lies about some responses for good: those have no score, all others theirs, and the run goes on."""
    config, _, _ = whole

    def lies(body: dict[str, Any]) -> Reply:
        return wrong_id(body) if opinion(body["inputs"][0]) < -1.5 else honest(body)

    judge.otherwise = lies
    mine = variant(config, tmp_path)
    mine["stages"][0] |= {"max_invalid_rewards": 0.9}
    mine["checkpoint"]["every"] = 100
    assert runs.run(mine, "step.after_log@3:kill") == -9
    rows = [json.loads(line) for line in (tiny_files[1] / "train.jsonl").read_text().splitlines()]
    questions = {row["id"]: row["prompt"] for row in rows}
    missing = [0, 0, 0]
    for step in range(3):
        for record in records(mine, step):
            place = record["scores"]["columns"].index("reward_model")
            for rollout, row in zip(record["rollouts"], record["scores"]["rewards_GK"], strict=True):
                told = opinion({"question": questions[record["sample"]], "response": clean(rollout["text"])})
                value = None if row[place] is None else float.fromhex(row[place])
                missing[step] += value is None
                assert value == (None if told < -1.5 else pytest.approx(1 / (1 + math.exp(-told))))
    lines = lines_of(mine)
    assert [line.get("fault/reward/reward_model/wrong_id", 0.0) for line in lines] == missing
    assert sum(missing) > 0


def asked_of(judge: JudgeServer) -> list[dict[str, Any]]:
    return [body["inputs"][0] for body, _, _ in judge.requests if body.get("inputs")]


def test_a_judge_that_only_lies_stops_the_run(whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    """After two steps, by the limit on missing rewards; no score was invented to go on."""
    config, _, _ = whole
    judge.otherwise = wrong_id
    mine = variant(config, tmp_path)
    assert runs.run(mine) == 65
    assert "reward_model" in error_of(mine)
    assert "max_invalid_rewards" in error_of(mine)
    assert all(line["rewards/reward_model/mean"] == 0.0 for line in lines_of(mine))
    assert all(row[0] is None for record in records(mine, 0) for row in record["scores"]["rewards_GK"])


def launch(config: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """On two ranks, until they end; a hang is a `TimeoutExpired`."""
    (folder / "run.py").write_text(LAUNCH)
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return subprocess.run(
        [*command, str(folder / "run.py"), str(folder / "config.json")],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.slow
def test_an_outage_on_one_rank_of_two_stops_both(whole: Whole, judge: JudgeServer, tmp_path: Path) -> None:
    """One prompt's questions are not answered, so one rank gives up while the other has all its scores."""
    config, _, _ = whole
    folders = [tmp_path / name for name in ("whole", "mine")]
    for folder in folders:
        folder.mkdir()
    undisturbed, mine = variant(config, folders[0]), variant(config, folders[1], max_wait=2.0)
    begun = len(judge.requests)
    done = launch(undisturbed, folders[0])
    assert done.returncode == 0, done.stderr[-3000:]
    victim = asked_of(judge)[-1]["question"]
    assert begun < len(judge.requests)

    def silent(body: dict[str, Any]) -> Reply:
        return Reply(status=0) if body["inputs"][0]["question"] == victim else honest(body)

    judge.otherwise, judge.canary = silent, closes()
    done = launch(mine, folders[1])
    assert done.returncode != 0
    assert "has not answered" in error_of(mine)
    recover(judge)
    done = launch(mine, folders[1])
    assert done.returncode == 0, error_of(mine) + done.stderr[-3000:]
    assert runs.outcome(mine)["weights"] == runs.outcome(undisturbed)["weights"]
