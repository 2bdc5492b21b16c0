"""`model.kernels: liger`: what is asked of the package, what is refused, and the package itself where it is installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from vlmrl.errors import ConfigError
from vlmrl.policy import liger

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A package with the two forms of the functions that liger-kernel has; the arguments of every call."""
    calls: list[dict[str, Any]] = []

    def apply_liger_kernel_to_qwen2_5_vl(
        rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, model: Any = None
    ) -> None:
        calls.append(
            {"rope": rope, "cross_entropy": cross_entropy, "fused_linear_cross_entropy": fused_linear_cross_entropy, "model": model}
        )

    def apply_liger_kernel_to_bare(rms_norm: bool = True, model: Any = None) -> None:
        calls.append({"rms_norm": rms_norm, "model": model})

    root, functions = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers")
    root.__spec__ = importlib.machinery.ModuleSpec("liger_kernel", None)
    functions.apply_liger_kernel_to_qwen2_5_vl = apply_liger_kernel_to_qwen2_5_vl  # pyright: ignore[reportAttributeAccessIssue]
    functions.apply_liger_kernel_to_bare = apply_liger_kernel_to_bare  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "liger_kernel", root)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", functions)
    return calls


def model_of(kind: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(model_type=kind))


def test_the_fused_losses_are_left_out(package: list[dict[str, Any]]) -> None:
    model = model_of("qwen2_5_vl")
    liger.fuse(model, device=CUDA)
    assert package == [{"rope": True, "cross_entropy": False, "fused_linear_cross_entropy": False, "model": model}]


def test_a_function_without_losses_is_called_without_them(package: list[dict[str, Any]]) -> None:
    model = model_of("bare")
    liger.fuse(model, device=CUDA)
    assert package == [{"rms_norm": True, "model": model}]


def test_what_cannot_run_is_refused_before_anything_changes(package: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=r"model\.kernels: 'liger' runs on CUDA, and the model is on cpu"):
        liger.fuse(model_of("qwen2_5_vl"), device=CPU)
    with pytest.raises(ConfigError, match="no kernels for a 'unheard_of' model"):
        liger.fuse(model_of("unheard_of"), device=CUDA)
    monkeypatch.delitem(sys.modules, "liger_kernel")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'vlmrl\[liger\]'"):
        liger.fuse(model_of("qwen2_5_vl"), device=CUDA)
    assert package == []


def test_which_models_it_has_kernels_for(package: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def suits(kind: str, family: str = "auto") -> bool:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        return liger.suits(str(tmp_path), family=family, revision=None)

    assert suits("qwen2_5_vl")
    assert not suits("qwen3_vl"), "a family of ours that this version of the package does not have"
    assert not suits("qwen2_5_vl", "generic"), "its forward is not the trainer's"
    monkeypatch.delitem(sys.modules, "liger_kernel")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not suits("qwen2_5_vl")


def equal(family: str, device: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.support.liger_equal", family, device]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


installed = pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")


@installed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "programs"), [("qwen2_5_vl", ["LigerRMSNorm.forward", "LigerSwiGLUMLP.forward"]), ("qwen3_vl", ["LigerRMSNorm.forward"])]
)
def test_the_package_equals_torch_by_tritons_interpreter(family: str, programs: list[str]) -> None:
    """Last layer and all gradients of a decoder with positions of three kinds."""
    found = equal(family, "cpu", TRITON_INTERPRET="1")
    assert found["liger"] == programs
    assert found["other bits"], "the same bits: nothing was replaced"
    assert found["names"] > 20
    assert found["apart"] < 2e-6


@installed
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_package_equals_torch_on_cuda(family: str) -> None:
    found = equal(family, "cuda")
    assert found["other bits"]
    assert found["apart"] < 1e-4
