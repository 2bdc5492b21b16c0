"""`vlmrl train --seeds`: a child per seed with its name, what ends all of them, and what is refused before any is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.seeds import train
from vlmrl.extras.seeds.train import seeds_of

RECIPE = "run: {name: mine, root: there}\nmodel: {path: m}\nstages:\n  - {kind: sft, name: s, source: {path: a.jsonl}, steps: 1}\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The lines that are run, in place of running them."""
    found: list[list[str]] = []
    monkeypatch.setattr(train, "_run", lambda words: found.append(list(words)) or 0)
    return found


def test_a_run_per_seed(recipe: Path, lines: list[list[str]]):
    done = CliRunner().invoke(app, ["train", str(recipe), "stages.s.steps=2", "--seeds", "0, 7"])
    assert done.exit_code == 0, done.output
    start = [sys.executable, "-m", "vlmrl", "train", str(recipe), "stages.s.steps=2"]
    assert lines == [[*start, f"run.name=mine-s{seed}", f"run.seed={seed}"] for seed in (0, 7)]
    assert "seed 7 (2 of 2): run.name=mine-s7" in done.output
    assert "runs:     there/mine-s0 there/mine-s7" in done.output
    assert "vlmrl compare OTHER... -- there/mine-s0 there/mine-s7" in done.output
    assert "all seeds share" not in done.output


def test_the_name_may_be_given_and_gpus_go_along(recipe: Path, lines: list[list[str]]):
    done = CliRunner().invoke(app, ["train", str(recipe), "run.name=x", "--seeds", "3", "--gpus", "2", "--restarts", "1"])
    assert done.exit_code == 0, done.output
    assert lines[0][5:] == ["run.name=x", "run.name=x-s3", "run.seed=3", "--gpus", "2", "--nodes", "1", "--host", "", "--restarts", "1"]


def test_what_seeds_of_a_generated_world_share_is_said(lines: list[list[str]]):
    done = CliRunner().invoke(app, ["train", "toy_video", "--seeds", "0,1", "toy.world.seed=4"])
    assert done.exit_code == 0, done.output
    assert "all seeds share the generated world (toy.world.seed=4) and the base model (toy.base_seed=0)" in done.output
    assert len(lines) == 2


def test_a_run_that_fails_ends_it_with_its_code(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    codes = iter([0, 75])
    monkeypatch.setattr(train, "_run", lambda words: next(codes))
    done = CliRunner().invoke(app, ["train", str(recipe), "--seeds", "0,1,2"])
    assert done.exit_code == 75
    assert "seed 1 ended with exit code 75; the same command goes on from here" in done.output
    assert "seed 2" not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0,x"], "expected whole numbers with commas between them"),
        (["--seeds", ""], "expected whole numbers"),
        (["--seeds", "1,1"], "a seed stands twice in 1,1"),
        (["--seeds", "0", "run.seed=3"], "run.seed: --seeds sets it for each run"),
        (["--seeds", "0", "--profile", "2"], "--profile traces one run"),
        (["--seeds", "0", "run.sede=3"], "did you mean 'seed'?"),
        (["--nodes", "2"], "--nodes, --host and --restarts belong to --gpus"),
    ],
)
def test_what_is_refused(recipe: Path, lines: list[list[str]], words: list[str], said: str):
    done = CliRunner().invoke(app, ["train", str(recipe), *words])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert lines == []


def test_ranks_do_not_start_runs(recipe: Path, lines: list[list[str]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = CliRunner().invoke(app, ["train", str(recipe), "--seeds", "0"])
    assert "--seeds starts the processes itself" in str(done.exception)
    assert lines == []


def test_seeds_of_a_text():
    assert seeds_of(" 0, 12 ,3") == [0, 12, 3]


def test_a_child_is_run_and_its_code_is_ours(tmp_path: Path):
    assert train._run([sys.executable, "-c", "raise SystemExit(65)"]) == 65
    assert train._run([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]) == 137


def test_a_signal_reaches_the_run_which_ends_as_it_wants(tmp_path: Path):
    """The run saves and ends with 75; the one that started it waits for that."""
    ready = tmp_path / "ready"
    child = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n"
    )

    def stop() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=stop, daemon=True).start()
    assert train._run([sys.executable, "-c", child]) == 75
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_two_seeds_train_and_the_same_command_has_nothing_to_do(tiny_files: tuple[Path, Path], tmp_path: Path):
    import json

    from tests.support import runs

    config: dict[str, Any] = runs.small_config(*tiny_files, tmp_path / "runs")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(config))
    words = [sys.executable, "-m", "vlmrl", "train", str(path), "--seeds", "0,1"]
    for said in ("model: ", "already finished"):
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count(said) == 2
    assert sorted(one.parent.name for one in (tmp_path / "runs").glob("*/FINISHED")) == ["small-s0", "small-s1"]
