"""torchrun starts the ranks again after one was killed, and the run ends with the bits of one that nothing disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_two_ranks import SCRIPT, launch
from tests.support import runs
from vlmrl.run.tracking import read_metrics


def ranks_of(agent: int) -> dict[int, int]:
    """Rank -> process, of what a launcher has started."""
    found: dict[int, int] = {}
    children = [int(child) for task in Path(f"/proc/{agent}/task").glob("*/children") for child in task.read_text().split()]
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {int(one.removeprefix(b"RANK=")): child for one in variables if one.startswith(b"RANK=")}
    return found


def lines(config: dict[str, Any]) -> int:
    path = runs.run_dir(config) / "metrics.jsonl"
    return len(read_metrics(path)) if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_rank_is_started_again_by_the_launcher(seed: int, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("whole", "mine"):
        (tmp_path / name).mkdir()
    whole, mine = (runs.small_config(*tiny_files, tmp_path / name) for name in ("whole", "mine"))
    launch(whole, 2, tmp_path / "whole")
    folder = tmp_path / "mine"
    (folder / "run.py").write_text(SCRIPT)
    (folder / "config.json").write_text(json.dumps(mine))
    draw = random.Random(seed)
    step, rank = draw.randint(1, 6), draw.randint(0, 1)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2", "--standalone"]
    with (folder / "log").open("w") as log:
        agent = subprocess.Popen(
            [*command, str(folder / "run.py"), str(folder / "config.json")],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
        )
    try:
        end = time.monotonic() + 400
        while lines(mine) < step:
            assert agent.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(ranks_of(agent.pid)[rank], signal.SIGKILL)
        assert agent.wait(600) == 0, (folder / "log").read_text()[-4000:]
    finally:
        agent.kill()
        agent.wait()
    said = (folder / "log").read_text()
    assert f"error: rank {rank} (host " in said
    assert "its process has ended without a word" in said
    assert len(json.loads((runs.run_dir(mine) / "run.json").read_text())["history"]) == 2, "it was started twice"
    assert runs.outcome(mine) == runs.outcome(whole)
