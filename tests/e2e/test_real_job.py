"""The real job in miniature: the command lines of `scripts/train_video.sh` and the TON recipe, in bfloat16 as configs/base says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support import real_job
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.run.tracking import read_metrics
from vlmrl.train.tensors import not_finite

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash")
RANKS = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
GAP = 0.05
"""Most mean |trainer - sampler| log-prob of a step in bfloat16; about 0.005 is usual."""

pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[ModelFamily, tuple[Path, Path]]:
    """(model folder, data folder) by family, made when first asked for."""

    class Made(dict[ModelFamily, tuple[Path, Path]]):
        def __missing__(self, family: ModelFamily) -> tuple[Path, Path]:
            self[family] = real_job.make(tmp_path_factory.mktemp(family) / "job", family)
            return self[family]

    return Made()


def call(command: list[str]) -> None:
    """Run a command to its end in an environment that is set up."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLMRL_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "Traceback" not in done.stderr


def checkout(folder: Path) -> Path:
    """The scripts and recipes of the checkout, with a setup that has nothing to do."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "scripts" / "setup.sh").write_text("exit 0\n")
    return folder


def check(run: Path, stages: dict[str, int], family: ModelFamily, *, adapters: bool) -> None:
    """The run is finished, was in bfloat16, updated the weights in every step, and left a model of finite weights."""
    assert "dtype: bfloat16" in (run / "config.yaml").read_text()
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "grad_norm" in line]
    assert [line["stage"] for line in lines] == [name for name, count in stages.items() for _ in range(count)]
    assert all(line["step/skipped"] == 0.0 and line["grad_norm"] > 0 for line in lines), "the ground-truth row is a signal"
    gaps = [line["sampling/logp_gap"] for line in lines if "sampling/logp_gap" in line]
    assert gaps
    assert all(0 < gap < GAP for gap in gaps), gaps
    weights = load_file(run / "final" / "model.safetensors")
    assert not not_finite(weights)
    assert json.loads((run / "final" / "config.json").read_text())["model_type"] == family
    assert (run / "final" / "adapter").is_dir() == adapters


def tempsamp(made: dict[ModelFamily, tuple[Path, Path]], family: ModelFamily, folder: Path, *, adapters: bool, gpus: int) -> None:
    """Both phases of `scripts/train_video.sh --model --data`."""
    model, data = made[family]
    script = checkout(folder / "checkout") / "scripts" / "train_video.sh"
    arguments = ["--model", str(model), "--data", str(data / "train.jsonl"), "--gpus", str(gpus)]
    overrides = [f"run.root={folder}", "model.dtype=bfloat16", *real_job.tempsamp(), *(real_job.LORA if adapters else ())]
    call([str(BASH), str(script), *arguments, *overrides])
    check(folder / "video_tempsamp_3b", {"answer": 2, "think": 2}, family, adapters=adapters)


def test_the_script_trains_a_local_model_in_bfloat16(made, tmp_path) -> None:
    tempsamp(made, "qwen2_5_vl", tmp_path, adapters=False, gpus=1)


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("adapters", [False, True], ids=["weights", "lora"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_the_script_trains_every_kind_of_model(family, adapters, gpus, made, tmp_path) -> None:
    tempsamp(made, family, tmp_path, adapters=adapters, gpus=gpus)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("adapters", [False, True], ids=["weights", "lora"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_sft_with_thought_dropout_then_rl(family, adapters, ranks, made, tmp_path) -> None:
    launch = [*RANKS, "--num_processes", str(ranks)] if ranks > 1 else []
    overrides = [f"run.root={tmp_path}", "model.dtype=bfloat16", *real_job.ton(*made[family]), *(real_job.LORA if adapters else ())]
    call([sys.executable, *launch, "-m", "vlmrl.cli", "train", str(ROOT / "configs" / "recipes" / "ton.yaml"), *overrides])
    check(tmp_path / "ton", {"sft": 2, "rl": 2}, family, adapters=adapters)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_the_command_lines_that_a_stranger_is_given(family, tmp_path) -> None:
    """What `python -m tests.support.real_job` prints is a command of a shell that ends well."""
    folder = tmp_path / "it's a job"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.real_job", str(folder), "--family", family],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=True,
    )
    commands = [line for line in done.stdout.splitlines() if line.startswith(("bash ", "vlmrl "))]
    assert len(commands) == 2
    place = checkout(tmp_path / "checkout")
    (place / "vlmrl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vlmrl.cli "$@"\n')
    (place / "vlmrl").chmod(0o755)
    for command in commands:
        call([str(BASH), "-c", f"cd '{place}' && PATH=$PWD:$PATH && {command}"])
    assert sorted(path.parent.name for path in (folder / "runs").glob("*/FINISHED")) == ["ton", "video_tempsamp_3b"]
