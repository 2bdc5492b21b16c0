"""Whole runs whose answers come from rollout servers, which make them up: weights go out, steps are sampled ahead, servers die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import cases, runs
from tests.support import tiny as tiny_module
from tests.support.rollout_stand_in import Served, serving
from vlmrl.data.encode import Encoder
from vlmrl.data.source import load_source
from vlmrl.evals.ask.models import LocalModel
from vlmrl.evals.score.records import read_records
from vlmrl.extras.vllm.inputs import Completion
from vlmrl.media.store import MediaStore
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.tracking import read_metrics
from vlmrl.types import GenerationSettings, Request

Files = tuple[Path, Path]
STEPS = 4


@contextmanager
def servers(count: int = 2, ports: tuple[int, ...] = (0, 0)) -> Iterator[list[Served]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving("Qwen2_5_VLForConditionalGeneration", port=ports[n])) for n in range(count)]


def config(files: Files, root: Path, there: list[Served], *, staleness: int = 0) -> dict[str, Any]:
    """Four RL steps. Answers are made up, so nothing is asked of their log-probs."""
    out = runs.small_config(*files, root)
    out["eval"] = {}
    out["model"]["positions"] = "max"
    sft, rl = out["stages"]
    sft["steps"], rl["steps"] = 1, STEPS
    rl["importance_correction"] = {"name": "tis"}
    rl["rollout"] |= {
        "engine": "vllm",
        "vllm": {"servers": [one.address for one in there], "patience": 1.0, "max_model_len": 2048},
        "max_gap": {"warn": 1000, "stop": 1000},
        "replay_gap": 1000,
        "staleness": staleness,
    }
    return out


def lines(cfg: dict[str, Any]) -> list[dict[str, Any]]:
    found = read_metrics(Path(cfg["run"]["root"]) / cfg["run"]["name"] / "metrics.jsonl")
    return [line for line in found if "grad_norm" in line and line["stage"] == "rl"]


@pytest.mark.parametrize("staleness", [0, 1])
def test_every_step_is_answered_with_the_weights_of_its_turn(tiny_files: Files, tmp_path: Path, staleness: int) -> None:
    with servers() as there:
        cfg = config(tiny_files, tmp_path, there, staleness=staleness)
        assert runs.run(cfg) == 0
        asked: dict[int, int] = {}
        for ask in (ask for one in there for ask in one.engine.asks):
            asked[ask.version.policy] = asked.get(ask.version.policy, 0) + len(ask.seeds)
        first = min(asked)
        turns = [max(0, step - staleness) for step in range(STEPS)]
        assert asked == {first + turn: 16 * turns.count(turn) for turn in turns}
        assert len({ask.version.whole for one in there for ask in one.engine.asks}) == 1
        assert all(one.posts.count("/vlmrl/weights/commit") == len(set(turns)) for one in there)
        assert all(one.engine.asks for one in there)
    assert [line.get("rollout/staleness", 0) for line in lines(cfg)] == [step - turn for step, turn in enumerate(turns)]


def test_evaluations_are_of_the_reference_engine_and_the_run_says_so(tiny_files: Files, tmp_path: Path) -> None:
    """The servers make answers up; an evaluation within the stage asks them nothing, and its answers are those of `vlmrl eval`."""
    with servers() as there:
        cfg = config(tiny_files, tmp_path, there)
        cfg["eval"] = {"source": {"path": "test.jsonl"}, "limit": 3, "max_new_tokens": 4, "every": 2, "at_start": False}
        assert runs.run(cfg) == 0
        assert sum(len(ask.seeds) for one in there for ask in one.engine.asks) == 16 * STEPS
        assert max(ask.settings.temperature for one in there for ask in one.engine.asks) > 0
    folder = runs.run_dir(cfg)
    assert "evaluations of this run are answered by the reference engine (hf), not by vllm" in (tmp_path / "said.txt").read_text()
    records = read_records(folder / "eval" / "rl.jsonl")
    assert len(records) == 3
    assert all("engine" not in record.settings for record in records)
    samples = load_source(tiny_files[1] / "test.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)[:3]
    model = LocalModel.load(folder / "final", device="cpu")
    store = MediaStore.of(tiny_module.MEDIA, model.bundle)
    encoder = Encoder.of(model.bundle, store, tiny_files[1], max_prompt_tokens=4096)
    engine = HFEngine(model.policy, VisionCache(store, budget_bytes=2**28))
    asked = [Request(prompt=encoder.encode(sample, "think_or_not"), seeds=(0,), ks=(0,)) for sample in samples]
    answers = engine.generate(asked, GenerationSettings(max_new_tokens=4, temperature=0.0))
    assert [record.text for record in records] == [group[0].text for group in answers]


def test_without_servers_the_run_ends_with_69_and_goes_on_from_its_journal(tiny_files: Files, tmp_path: Path) -> None:
    with servers() as there:
        cfg = config(tiny_files, tmp_path, there)
        answered: list[int] = []

        def alter(answer: Completion) -> Completion:
            answered.append(1)
            if len(answered) == 12:  # in the second half of the first step
                for one in there:
                    one.engine.free.clear()
                    threading.Thread(target=one.kill).start()
            return answer

        for one in there:
            one.engine.alter = alter
        assert runs.run(cfg) == 69
        assert "no rollout server for 1 s (rollout.vllm.patience)" in (tmp_path / "error.txt").read_text()
        first = {ask.version.policy for one in there for ask in one.engine.asks}
        assert len(first) == 1, "no answer of other weights: the servers are gone before the first update's are sent"
        ports = tuple(int(one.address.rpartition(":")[2]) for one in there)
    with servers(ports=(ports[0], ports[1])) as there:
        assert runs.run(cfg) == 0
        again = [ask for one in there for ask in one.engine.asks if {ask.version.policy} == first]
        # none, where the other server's answers were faster than the kill and the step was whole before it
        assert sum(len(ask.seeds) for ask in again) <= 8, "what was answered before is in the journal"
    assert len(lines(cfg)) == STEPS


@pytest.mark.parametrize("when", cases.some(["answers", "weights"], {"weights"}))
def test_a_signal_ends_the_wait_for_servers(tiny_files: Files, tmp_path: Path, when: str) -> None:
    """Long before the patience is over, with the exit code of a run that was asked to stop; the same command goes on from there."""
    killers: list[threading.Thread] = []
    with servers() as there:
        cfg = config(tiny_files, tmp_path, there)
        cfg["stages"][1]["rollout"]["vllm"]["patience"] = 600.0
        cfg["checkpoint"]["every"] = 1
        answered: list[int] = []
        end = time.monotonic() + 120

        def kill(one: Served) -> None:
            while when == "weights" and one.replied < len(one.posts):  # the step's last answer is on its way
                assert time.monotonic() < end
                time.sleep(0.001)
            one.kill()

        def alter(answer: Completion) -> Completion:
            answered.append(1)
            if len(answered) == (12 if when == "answers" else 16):  # in the second half of the first step, or at its end
                for one in there:
                    one.engine.free.clear() if when == "answers" else None
                    killers.append(threading.Thread(target=kill, args=(one,)))
                    killers[-1].start()
            return answer

        for one in there:
            one.engine.alter = alter
        child = runs.start(cfg)
        while len(killers) < 2:
            assert child.is_alive(), (tmp_path / "error.txt").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        for one in killers:
            one.join(60)
        if when == "weights":
            while not (tmp_path / "small" / "checkpoints" / "step-00000002" / "manifest.json").exists():
                assert time.monotonic() < end
                time.sleep(0.05)
        time.sleep(2.0)
        assert child.is_alive(), "it waits"
        began = time.monotonic()
        os.kill(child.pid, signal.SIGTERM)
        child.join(60)
        assert child.exitcode == 75
        assert time.monotonic() - began < 15
        assert "stopped by a signal while waiting for a rollout server" in (tmp_path / "error.txt").read_text()
        ports = tuple(int(one.address.rpartition(":")[2]) for one in there)
    with servers(ports=(ports[0], ports[1])) as there:
        assert runs.run(cfg) == 0
        asked = sum(len(ask.seeds) for one in there for ask in one.engine.asks)
        assert asked <= 16 * (STEPS - 1) + (8 if when == "answers" else 0), "what was answered before is in the journal"
    assert len(lines(cfg)) == STEPS


def test_one_server_that_dies_does_not_end_the_run(tiny_files: Files, tmp_path: Path) -> None:
    with servers() as there:
        cfg = config(tiny_files, tmp_path, there)
        left, answered = there[1], list[int]()

        def alter(answer: Completion) -> Completion:
            answered.append(1)
            if len(answered) == 1:  # of the first half of the first step
                there[0].engine.free.clear()
                threading.Thread(target=there[0].kill).start()
            return answer

        there[0].engine.alter = alter
        assert runs.run(cfg) == 0
        assert left.posts.count("/vlmrl/weights/commit") == STEPS
    assert sum(line["work/asked_again"] for line in lines(cfg)) > 0
