"""Runs whose optimizer is not the plain one end with the same bits after a kill in the middle of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import cases, runs

OPTIM: dict[str, dict[str, Any]] = {
    "rates of parts": {"lr": 1e-3, "warmup": 0.5, "weight_decay": 0.1, "parts": {"projector": 2e-3}},
    "orthogonal steps": {"kind": "muon", "lr": 1e-3, "warmup": 0.5, "weight_decay": 0.1, "parts": {"projector": 2e-3}},
    "moments of 8 bits": {"kind": "adamw8bit", "lr": 1e-3, "warmup": 0.5, "weight_decay": 0.1, "parts": {"projector": 2e-3}},
}


@pytest.mark.parametrize("name", cases.some(sorted(OPTIM), {"moments of 8 bits", "orthogonal steps"}))
def test_a_killed_run_ends_with_the_same_bits(name: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    def config(folder: str) -> dict[str, Any]:
        out = runs.small_config(*tiny_files, tmp_path / folder, beta=0.0)
        out["eval"] = {}
        out["checkpoint"]["every"] = 1
        for stage in out["stages"]:
            stage["optim"] = OPTIM[name]
        return out

    whole = config("whole")
    assert runs.run(whole) == 0
    expected = runs.outcome(whole)
    killed = config("killed")
    for point in ("step.before_update@3", "step.after_log@2"):
        assert runs.run(killed, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == expected
    lines = [line for line in expected["metrics"] if "lr" in line]
    assert len(lines) == 7
    assert [line["lr/projector"] for line in lines] == [2 * line["lr"] for line in lines]
    assert len({line["lr"] for line in lines}) > 1, "the rates rise"
    (newest, *_) = sorted((runs.run_dir(whole) / "checkpoints").glob("step-*"), reverse=True)
    moments = load_file(newest / "optimizer.safetensors")
    assert any(value.dtype == torch.uint8 for value in moments.values()) == (name == "moments of 8 bits")
    assert any(key.startswith("exp_avg/") for key in moments) == (name != "moments of 8 bits")
    assert any(key.startswith("momentum_buffer/") for key in moments) == (name == "orthogonal steps")
