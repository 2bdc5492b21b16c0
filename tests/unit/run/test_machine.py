"""What a recipe leaves to the machine, on a pretended CUDA device, and runs that go on with what they were begun with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.support import runs
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config, ModelSection, RolloutStage
from vlmrl.run import machine
from vlmrl.run.machine import choices, settled, told
from vlmrl.run.session import fixed_options
from vlmrl.run.start import set_torch

ON_CPU = {"dtype": "float32", "kernels": "torch", "gradient_checkpointing": False}
ON_CUDA = {"dtype": "bfloat16", "kernels": "liger", "gradient_checkpointing": True}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that computes in bfloat16, as far as torch tells."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)


def model(**values: Any) -> ModelSection:
    return ModelSection.model_validate({"path": "m", **values})


def test_the_defaults_are_left_to_the_machine() -> None:
    assert [getattr(model(), key) for key in machine.KEYS] == ["auto"] * 3
    assert choices(model(), "m") == ON_CPU


@pytest.mark.parametrize("suits", [True, False])
def test_on_cuda_they_are_bfloat16_and_liger_where_it_has_the_model(cuda: None, suits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "suits", lambda path, *, family, revision: suits and path == "m" and family == "auto")
    assert choices(model(), "m") == ON_CUDA | {"kernels": "liger" if suits else "torch"}
    assert choices(model(device="cpu"), "m") == ON_CPU


def test_a_gpu_without_bfloat16_computes_in_float32(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert choices(model(kernels="torch"), "m")["dtype"] == "float32"


def recipe(**values: Any) -> Config:
    stage = {"kind": "sft", "name": "s", "source": {"path": "rows.jsonl"}, "steps": 1}
    return Config.model_validate({"model": {"path": "m", **values}, "stages": [stage]})


def test_what_the_recipe_says_stays_and_the_rest_is_written_out(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "suits", lambda *_, **__: False)
    asked = loaded(recipe(dtype="float32"))
    taken = settled(asked, "m")
    assert (
        yaml.safe_load(taken.text)["model"] | {"dtype": "float32", "kernels": "torch", "gradient_checkpointing": True}
        == (yaml.safe_load(taken.text)["model"])
    )
    assert taken.hash != asked.hash
    assert settled(taken, "m") is taken
    assert told(asked.config, taken.config, resumed=False) == [
        "auto: model.kernels: torch, model.gradient_checkpointing: true (chosen for cuda)"
    ]
    assert told(taken.config, taken.config, resumed=False) == []


def test_a_run_goes_on_with_what_it_was_begun_with(cuda: None) -> None:
    """Begun by a version whose default was float32, or on another machine."""
    began = fixed_options(recipe(**ON_CPU))
    assert settled(loaded(recipe()), "m", began).config.model == recipe(**ON_CPU).model


def rl(asked: Any = None, engine: str = "hf", **sections: Any) -> Config:
    rollout = {"engine": engine} | ({} if asked is None else {"graphs": asked})
    stage = {"kind": "grpo", "name": "rl", "source": {"path": "rows.jsonl"}, "steps": 1, "rewards": [{"name": "exact"}], "rollout": rollout}
    return Config.model_validate({"model": {"path": "m"} | sections.pop("model", {}), "stages": [stage], **sections})


def graphs_of(cfg: Config, path: str, began: Any = None) -> Any:
    stage = settled(loaded(cfg), path, began).config.stages[0]
    assert isinstance(stage, RolloutStage)
    return stage.rollout.graphs


def test_steps_are_recorded_on_cuda_where_they_can_be(cuda: None, tiny_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tiny_files[0])
    assert graphs_of(rl(), path) is True
    assert graphs_of(rl(False), path) is False
    assert graphs_of(rl(engine="vllm"), path) is False
    assert graphs_of(rl(model={"device": "cpu"}), path) is False
    assert graphs_of(rl(model={"quantize": "nf4", "lora": {}}), path) is False
    assert graphs_of(rl(train={"sharding": "fsdp"}), path) is False
    assert graphs_of(rl(model={"family": "generic"}), path) is False
    began = fixed_options(rl(False))
    assert graphs_of(rl(), path, began) is False, "as the run was begun"
    del began["stages"][0]["rollout"]["graphs"]
    assert graphs_of(rl(), path, began) is True
    taken = settled(loaded(rl()), path).config
    assert "stages.rl.rollout.graphs: true (chosen for cuda)" in told(rl(), taken, resumed=False)[0]


def test_on_a_cpu_no_step_is_recorded(tiny_files: tuple[Path, Path]) -> None:
    assert graphs_of(rl(), str(tiny_files[0])) is False


def test_a_run_says_and_keeps_what_was_chosen(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path)
    assert runs.run(config) == 0
    folder = runs.run_dir(config)
    for fixed in (yaml.safe_load((folder / "config.yaml").read_text()), yaml.safe_load((folder / "run.json").read_text())["fixed"]):
        assert fixed["model"] | ON_CPU == fixed["model"]


def test_memory_grows_in_segments_unless_the_user_or_vllm_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(engine: str = "hf", vllm: Any = None, **environment: str) -> str | None:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
                patch.setenv(name, "")
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            rollout = {"engine": engine, "vllm": vllm}
            stage = {
                "kind": "grpo",
                "name": "s",
                "source": {"path": "rows.jsonl"},
                "steps": 1,
                "rollout": rollout,
                "rewards": [{"name": "format"}],
            }
            set_torch(Config.model_validate({"model": {"path": "m"}, "stages": [stage]}))
            return os.environ.get("PYTORCH_CUDA_ALLOC_CONF")

    assert wanted() == "expandable_segments:True"
    assert wanted(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64") == "max_split_size_mb:64"
    assert wanted(PYTORCH_ALLOC_CONF="max_split_size_mb:64") is None
    assert wanted("vllm") is None
    assert wanted("vllm", {"servers": ["http://localhost:1"]}) == "expandable_segments:True"
