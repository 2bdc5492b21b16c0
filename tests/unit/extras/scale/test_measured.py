"""The number of CPU threads: who says it, how it is chosen, and that a run goes on with the one that it was begun with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vlmrl.config.schema import Config
from vlmrl.extras.scale import measured

STAGE = {"kind": "sft", "name": "s", "source": {"path": "a"}, "steps": 1}


def config(threads: int = 0, device: str = "cpu") -> Config:
    return Config.model_validate({"run": {"threads": threads}, "model": {"path": "m", "device": device}, "stages": [STAGE]})


@pytest.fixture(autouse=True)
def _nobody_says_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    for name in measured.SAID_BY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(measured.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(measured, "measure", lambda counts, width: {n: 0.01 * n for n in counts})
    yield
    torch.set_num_threads(before)


def test_a_new_run_takes_what_was_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    said = measured.settle(config(), tmp_path, "m")
    assert said is not None
    assert said.startswith("threads: 1 of 4 cores (measured: 10 ms with 1, 20 ms with 2, 40 ms with 4;")
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(measured, "measure", lambda counts, width: {n: 0.04 / n for n in counts})
    assert "threads: 4 of 4" in str(measured.settle(config(), tmp_path, "m"))
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({1: 1.0, 2: 0.95, 4: 0.93}, 1),
        ({1: 1.0, 2: 0.8, 4: 0.78}, 2),
        ({1: 1.0, 2: 1.5, 4: 0.5}, 4),
        ({1: 1.0, 2: 10.0, 4: 10.0}, 1),
    ],
)
def test_more_threads_only_where_they_are_clearly_faster(seconds: dict[int, float], taken: int) -> None:
    assert measured.best(seconds) == taken


@pytest.mark.parametrize("who", ["OMP_NUM_THREADS", "WORLD_SIZE", "run.threads", "one core"])
def test_nothing_is_measured_where_somebody_says_the_number(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> dict[int, float]:
        raise AssertionError("measured")

    monkeypatch.setattr(measured, "measure", never)
    if who == "one core":
        monkeypatch.setattr(measured.os, "sched_getaffinity", lambda _: range(1))
    elif who != "run.threads":
        monkeypatch.setenv(who, "2")
    before = torch.get_num_threads()
    assert measured.settle(config(threads=2 if who == "run.threads" else 0), tmp_path, "m") is None
    assert torch.get_num_threads() == before


def test_a_run_goes_on_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "environment.json").write_text(json.dumps({"threads": 2}))
    assert measured.settle(config(), tmp_path, "m") == "threads: 2, as the run was begun"
    assert torch.get_num_threads() == 2
    torch.set_num_threads(3)
    for earlier in ("{}", "damaged"):
        (tmp_path / "environment.json").write_text(earlier)
        assert measured.settle(config(), tmp_path, "m") is None
    assert torch.get_num_threads() == 3


def test_the_width_is_that_of_the_model(tmp_path: Path) -> None:
    assert measured.width_of(str(tmp_path / "none"), None) == measured.WIDEST
    for values, width in (({"text_config": {"hidden_size": 96}}, 96), ({"hidden_size": 64}, 64), ({"hidden_size": 4096}, 1024)):
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert measured.width_of(str(tmp_path), None) == width


@pytest.mark.parametrize("width", [64, measured.WIDEST])
def test_measuring_is_short_and_draws_nothing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    state = torch.get_rng_state()
    before = time.process_time()
    seconds = measured.measure([1], width)
    assert time.process_time() - before < 3
    assert set(seconds) == {1}
    assert seconds[1] > 0
    assert torch.equal(torch.get_rng_state(), state)
