"""Adapters on a family without code of its own: a killed run ends with the same bits, and exports merged weights and adapter."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.test_resume_families import small
from tests.support import runs
from tests.support.given import make_model, make_rows

FAMILY = "lfm2_vl"
"""Its decoder has linear layers that no Qwen has."""
POINTS = ("stage.exported@1", "step.before_update@2")


@pytest.mark.slow
def test_a_killed_run_of_adapters_ends_with_the_same_bits(tmp_path: Path) -> None:
    model, world = make_model(FAMILY, tmp_path / "model"), make_rows(tmp_path / "world", video=False, train=4, test=1)
    whole = small(model, world, tmp_path / "whole")
    whole["model"]["lora"] = {"rank": 2, "alpha": 4}
    for stage in whole["stages"]:
        stage["optim"] = {"lr": 1e-2}
    assert runs.run(whole, timeout=900) == 0
    expected = runs.outcome(whole)
    killed = copy.deepcopy(whole)
    killed["run"]["root"] = str(tmp_path / "killed")
    for point in POINTS:
        assert runs.run(killed, f"{point}:kill", timeout=900) == -9, f"{point} is never passed"
    assert runs.run(killed, timeout=900) == 0
    assert runs.outcome(killed) == expected

    path = runs.run_dir(whole)
    base, sft, rl = (load_file(folder / "model.safetensors") for folder in (model, path / "stages" / "sft", path / "final"))
    for before, after in ((base, sft), (sft, rl)):
        changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
        assert changed == {"q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"}, (
            "all layers with an adapter, and no other"
        )
    written = json.loads((path / "final" / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(path / "stages" / "sft")
    adapter = load_file(path / "final" / "adapter" / "adapter_model.safetensors")
    assert adapter
    assert all(float(tensor.abs().max()) > 0 for tensor in adapter.values())
