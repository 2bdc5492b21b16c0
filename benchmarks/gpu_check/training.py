"""A training run as a process of its own, for checks that compare or kill processes: `python -m benchmarks.gpu_check.training CONFIG`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_check.faulty import install
from vlmrl.config.schema import Config

ROOT = Path(__file__).resolve().parents[2]


def start(cfg: Config, folder: Path, *, fault: str = "") -> tuple[int, str]:
    """(exit code, negative for a signal; the end of what it printed). `fault` as in `vlmrl.faults`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(cfg.model_dump(mode="json")))
    env = {key: value for key, value in os.environ.items() if key != "VLMRL_FAULT"} | ({"VLMRL_FAULT": fault} if fault else {})
    # reproducible sums of matrix products on CUDA: read when the library starts
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check.training", str(file)], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr[-2000:]


def main() -> None:
    install()
    from benchmarks.gpu_check.runs import train
    from vlmrl.policy.load import quiet_transformers

    quiet_transformers()
    train(Config.model_validate(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
