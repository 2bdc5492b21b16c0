"""A run of low-rank adapters, killed between and inside its stages, ends with the same bits; each stage starts from merged weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import runs
from vlmrl.families.qwen_vl import LANGUAGE_TARGETS


def test_a_killed_run_of_two_stages_ends_with_the_same_bits(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    def config(name: str) -> dict[str, Any]:
        out = runs.small_config(*tiny_files, tmp_path / name)
        out["model"]["lora"] = {"rank": 4, "alpha": 8}
        for stage in out["stages"]:
            stage["optim"] = {"lr": 1e-2}
        return out

    whole = config("whole")
    assert runs.run(whole) == 0
    expected = runs.outcome(whole)
    killed = config("killed")
    for point in ("stage.exported@1", "step.before_update@4"):
        assert runs.run(killed, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == expected

    path = runs.run_dir(whole)
    base, sft, rl = (load_file(folder / "model.safetensors") for folder in (tiny_files[0], path / "stages" / "sft", path / "final"))
    for before, after in ((base, sft), (sft, rl)):
        changed = {n for n in before if not torch.equal(before[n], after[n])}
        assert changed
        assert all(".layers." in n and n.split(".")[-2] in LANGUAGE_TARGETS for n in changed), "only weights with an adapter change"
    (newest, *_) = sorted((path / "checkpoints").glob("step-*"), reverse=True)
    assert all(".lora_A." in n or ".lora_B." in n for n in load_file(newest / "weights.safetensors"))
    written = json.loads((path / "final" / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(path / "stages" / "sft")
    kl = [line["kl"] for line in expected["metrics"] if line["stage"] == "rl" and "kl" in line]
    assert kl[0] == pytest.approx(0.0, abs=1e-6), "the first step of a stage is its reference"
    assert kl[-1] > 1e-6


@pytest.mark.slow
def test_a_killed_run_over_a_base_in_16_bits_ends_with_the_same_bits(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A stage that goes on in the process and one that reads its base from the export round the sums of base and adapters alike."""

    def config(name: str) -> dict[str, Any]:
        out = runs.small_config(*tiny_files, tmp_path / name)
        out["model"] |= {"lora": {"rank": 4, "alpha": 8}, "dtype": "bfloat16"}
        for stage in out["stages"]:
            stage["optim"] = {"lr": 1e-2}
        return out

    whole, killed = config("whole"), config("killed")
    assert runs.run(whole) == 0
    for point in ("stage.exported@1", "step.before_update@4"):
        assert runs.run(killed, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)
    sft, final = (load_file(runs.run_dir(whole) / name / "model.safetensors") for name in ("stages/sft", "final"))
    assert {t.dtype for t in (*sft.values(), *final.values())} == {torch.float32}
    assert any(not torch.equal(t, t.bfloat16().float()) for t in sft.values()), "sums are not rounded in the file"


def test_a_killed_run_over_weights_in_4_bits_ends_with_the_same_bits(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")

    def config(name: str) -> dict[str, Any]:
        out = runs.small_config(*tiny_files, tmp_path / name)
        out["model"] |= {"lora": {"rank": 4, "alpha": 8}, "quantize": "nf4"}
        out["stages"] = [out["stages"][1] | {"steps": 2, "optim": {"lr": 1e-2}}]
        out["checkpoint"], out["eval"] = {"every": 1}, out["eval"] | {"every": 1}
        return out

    whole = config("whole")
    assert runs.run(whole) == 0
    expected = runs.outcome(whole)
    killed = config("killed")
    for point in ("step.before_update@2", "stage.exported"):
        assert runs.run(killed, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == expected

    changed = config("killed")
    changed["model"]["quantize"] = "none"
    assert runs.run(changed) != 0, "a run does not go on over other weights"
    assert "model.quantize" in (tmp_path / "killed" / "error.txt").read_text()

    base, final = (load_file(folder / "model.safetensors") for folder in (tiny_files[0], runs.run_dir(whole) / "final"))
    moved = {n for n in base if not torch.equal(base[n], final[n])}
    assert moved
    assert all(".layers." in n and n.split(".")[-2] in LANGUAGE_TARGETS for n in moved)
    (newest, *_) = sorted((runs.run_dir(whole) / "checkpoints").glob("step-*"), reverse=True)
    assert all(".lora_A." in n or ".lora_B." in n for n in load_file(newest / "weights.safetensors"))
    kl = [line["kl"] for line in expected["metrics"] if line["stage"] == "rl" and "kl" in line]
    assert kl[0] == pytest.approx(0.0, abs=1e-6), "the reference is the quantised base"
