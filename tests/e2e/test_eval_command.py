"""`vlmrl eval` as a process: killed at any point and started again, and shared by two ranks, it ends with the same records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import vlmrl

SUITE = """
id: four
version: 1
batch_prompts: 2
tasks:
  - id: sampled
    source: test.jsonl
    answer_format: think_or_not
    answer_type: time_span
    max_new_tokens: 8
    samples: 4
    temperature: 1.0
    limit: 6
    media: {min_pixels: 3136, max_pixels: 4704, max_frames: 32}
  - id: greedy
    source: test.jsonl
    answer_format: answer_only
    answer_type: time_span
    max_new_tokens: 6
    limit: 3
    media: {min_pixels: 3136, max_pixels: 4704, max_frames: 32}
"""
TASKS = ("sampled", "greedy")
BATCHES = 5
"""Of both tasks together."""


@pytest.fixture(scope="module")
def whole(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the suite and the results of one uninterrupted evaluation in `out`."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "four.yaml").write_text(SUITE)
    done = evaluate(tiny_files, folder, folder / "out")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def evaluate(
    files: tuple[Path, Path], folder: Path, out: Path, *, ranks: int = 1, fault: str | None = None
) -> subprocess.CompletedProcess[str]:
    model, world = files
    arguments = ["eval", str(model), "--suite", str(folder / "four.yaml"), "--data-root", str(world), "--out", str(out), "--device", "cpu"]
    if ranks == 1:
        return vlmrl(*arguments, variables={"VLMRL_FAULT": fault} if fault else {})
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, "-m", "vlmrl.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def records(out: Path) -> dict[str, bytes]:
    return {task: (out / f"{task}.jsonl").read_bytes() for task in TASKS}


@pytest.mark.parametrize("batch", [1, 3])
def test_killed_and_started_again(tiny_files: tuple[Path, Path], whole: Path, tmp_path: Path, batch: int):
    out = tmp_path / "out"
    killed = evaluate(tiny_files, whole, out, fault=f"eval.record@{batch}:kill")
    assert killed.returncode == -9
    lines = (out / "sampled.jsonl").read_bytes().count(b"\n")
    assert lines == 8 * batch
    assert (
        evaluate(tiny_files, whole, out, fault=f"eval.record@{BATCHES - batch + 1}:kill").returncode == 0
    )  # only the other batches are asked
    assert records(out) == records(whole / "out")
    assert not list(out.glob("*.superseded"))
    assert (out / "summary.json").read_bytes() == (whole / "out" / "summary.json").read_bytes()


def test_two_ranks_give_what_one_gives(tiny_files: tuple[Path, Path], whole: Path, tmp_path: Path):
    done = evaluate(tiny_files, whole, tmp_path / "out", ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert records(tmp_path / "out") == records(whole / "out")
    assert (tmp_path / "out" / "results.md").read_text() == (whole / "out" / "results.md").read_text()
