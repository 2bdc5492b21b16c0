"""ms-swift in benchmarks/step/vs_trl.py: what it trained on is held against what it sampled; a very small setting goes to the page.

Set `VLMRL_SWIFT_PYTHON` to the interpreter of an environment with ms-swift for the latter.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.common import BenchmarkError
from benchmarks.step.flops import ModelShape, TowerShape
from benchmarks.step.peer_swift import trained_on
from benchmarks.step.vs_trl import planned
from benchmarks.step.workload import fingerprint
from tests.support.command import module

PYTHON = os.environ.get("VLMRL_SWIFT_PYTHON")
SMALL = ["--prompts", "64", "--groups", "2", "--completions", "4", "--repeats", "1", "--steps", "1", "--warmup", "0"]
SAME = ("prompt_tokens", "prompt_ids", "completion_tokens", "answers", "parameters")


def trainer(rows: list[list[int]], masks: list[list[bool]]) -> Any:
    """What a trainer holds after a step of one row a pass, with a model of six weights, two of them frozen."""
    weights = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(2), requires_grad=False)]
    batches = [
        {"model_inputs": {"input_ids": torch.tensor([row])}, "grpo_batch": SimpleNamespace(completion_mask=torch.tensor([mask]))}
        for row, mask in zip(rows, masks, strict=True)
    ]
    return SimpleNamespace(_buffered_inputs=batches, model=SimpleNamespace(parameters=lambda: weights))


def test_what_was_trained_on_is_counted() -> None:
    made = trained_on(trainer([[7, 8, 9, 1, 2], [7, 8, 9, 3, 4]], [[True, True]] * 2), [[1, 2], [3, 4]])
    expected = {"prompt_tokens": 3, "prompt_ids": fingerprint([7, 8, 9]), "completion_tokens": 2.0, "answers": 2, "parameters": 4}
    assert made == expected
    assert fingerprint([7, 8, 9]) != fingerprint([7, 9, 8])


@pytest.mark.parametrize(
    ("rows", "masks"),
    [
        ([[7, 8, 1, 2], [7, 8, 3, 5]], [[True, True]] * 2),
        ([[7, 8, 1, 2], [7, 8, 3, 4]], [[True, True], [True, False]]),
        ([[7, 8, 1, 2], [7, 9, 3, 4]], [[True, True]] * 2),
    ],
    ids=["another token", "a token left out", "another prompt"],
)
def test_other_tokens_are_no_comparison(rows: list[list[int]], masks: list[list[bool]]) -> None:
    with pytest.raises(BenchmarkError, match="no comparison"):
        trained_on(trainer(rows, masks), [[1, 2], [3, 4]])


def test_old_log_probs_are_a_forward_pass_more() -> None:
    tower = TowerShape(depth=3, hidden=4, mlp=6, mlp_matrices=3, patch_values=5, merge=2, out=7, window=4, full_blocks=(1,))
    shape = ModelShape(layers=2, hidden=4, query=4, key=2, mlp=8, vocabulary=10, tower=tower)
    trl, swift = (planned(shape, {"prompt": 64, "group": 3, "completion": 2}, 70, side) for side in ("trl", "swift"))
    assert (swift.rollout, swift.update) == (trl.rollout, trl.update)
    assert swift.total == pytest.approx(trl.rollout.total + 4 / 3 * trl.update.total)


def test_without_its_python_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = module("benchmarks.step.vs_trl", *SMALL, "--sides", "swift", "--work", str(tmp_path), "--write", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "--swift-python" in done.stderr
    assert "pip install ms-swift" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="no ms-swift here; VLMRL_SWIFT_PYTHON names an interpreter that has it")
def test_a_very_small_setting_runs(tmp_path: Path) -> None:
    where = ["--work", str(tmp_path / "work"), "--write", str(tmp_path / "out"), "--swift-python", str(PYTHON)]
    done = module("benchmarks.step.vs_trl", *SMALL, "--sides", "swift", "swift_lean", "shared_prefix", *where, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = json.loads((tmp_path / "out.json").read_text())["results"].values()
    assert [result["side"] for result in results] == ["swift", "swift_lean", "shared_prefix"]
    assert len({tuple(result[name] for name in SAME) for result in results}) == 1
    assert all(len(result["seconds"]) == 1 and result["rollout"] and result["update"] for result in results)
    page = (tmp_path / "out.md").read_text()
    assert "swift_lean / shared_prefix" in page
    assert "versions of swift, swift_lean: " in page
    assert str(PYTHON) not in page
