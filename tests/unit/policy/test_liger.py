"""`model.kernels: liger`: what is replaced, what is refused, and the package itself where it is installed."""

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
from torch import Tensor

from tests.support.saved_bytes import build
from vlmrl.errors import ConfigError
from vlmrl.policy import liger

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Norm(torch.autograd.Function):
    """The package's RMSNorm, by torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float, casting: str, in_place: bool) -> Tensor:
        assert (offset, casting, in_place) == (0.0, "llama", False)
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight


class SiluMul(torch.autograd.Function):
    """The package's SwiGLU, by torch."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        return torch.nn.functional.silu(gate) * up


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A package with the two functions that are called of liger-kernel, allowed on the CPU."""
    modules = {name: ModuleType(name) for name in ("liger_kernel", "liger_kernel.ops.rms_norm", "liger_kernel.ops.swiglu")}
    modules["liger_kernel"].__spec__ = importlib.machinery.ModuleSpec("liger_kernel", None)
    norm, swiglu = (modules[f"liger_kernel.ops.{name}"] for name in ("rms_norm", "swiglu"))
    norm.LigerRMSNormFunction = Norm  # pyright: ignore[reportAttributeAccessIssue]
    swiglu.LigerSiLUMulFunction = SiluMul  # pyright: ignore[reportAttributeAccessIssue]
    for name, module in (modules | {"liger_kernel.ops": ModuleType("liger_kernel.ops")}).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return SimpleNamespace(norm=norm, swiglu=swiglu)


@pytest.fixture
def model() -> Any:
    return build("qwen2_5_vl", hidden=32, layers=2, heads=2, kv_heads=1, mlp=48, vision={"hidden": 16, "depth": 1, "heads": 2, "mlp": 32})


def fused(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if module.forward.__module__ == liger.__name__]


@pytest.mark.usefixtures("package")
def test_norms_and_gated_products_of_decoder_and_tower_are_replaced(model: Any) -> None:
    liger.fuse(model, device=CPU)
    found = fused(model)
    assert {name.rsplit(".", 1)[-1] for name in found} == {
        "norm", "input_layernorm", "post_attention_layernorm", "mlp", "norm1", "norm2", "ln_q"
    }  # fmt: skip
    assert sum(name.endswith("mlp") for name in found) == 3, "two of the decoder, one of the tower"
    x = torch.randn(2, 5, 32)
    decoder = model.model.language_model
    got = decoder(inputs_embeds=x, use_cache=False).last_hidden_state
    for name in found:
        del model.get_submodule(name).forward
    torch.testing.assert_close(got, decoder(inputs_embeds=x, use_cache=False).last_hidden_state)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("other arguments", "does not run here"),
        ("missing", "does not run here"),
        ("other numbers", "gives other numbers than torch"),
        ("no numbers", "gives other numbers than torch"),
    ],
)
def test_a_release_that_does_not_fit_is_refused_before_anything_changes(fault: str, said: str, package: Any, model: Any) -> None:
    if fault == "other arguments":
        package.norm.LigerRMSNormFunction = SiluMul
    elif fault == "missing":
        del package.swiglu.LigerSiLUMulFunction
    else:
        wrong = 1.001 if fault == "other numbers" else float("nan")
        package.swiglu.LigerSiLUMulFunction = SimpleNamespace(apply=lambda gate, up: SiluMul.apply(gate, up) * wrong)
    with pytest.raises(ConfigError, match=f"model.kernels: this liger-kernel {said}.*take 'torch'"):
        liger.fuse(model, device=CPU)
    assert fused(model) == []


def test_what_cannot_run_is_refused(package: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = torch.nn.Linear(2, 2)
    other.config = SimpleNamespace(model_type="unheard_of")
    with pytest.raises(ConfigError, match="no kernels for a 'unheard_of' model"):
        liger.fuse(other, device=CPU)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match=r"model\.kernels: 'liger' runs on CUDA, and the model is on cpu"):
        liger.fuse(model, device=CPU)
    monkeypatch.delitem(sys.modules, "liger_kernel")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'vlmrl\[liger\]'"):
        liger.fuse(model, device=CUDA)
    assert fused(model) == []


@pytest.mark.usefixtures("package")
def test_which_models_it_is_taken_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def suits(kind: str, family: str = "auto") -> bool:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        return liger.suits(str(tmp_path), family=family, revision=None)

    assert suits("qwen2_5_vl")
    assert suits("qwen3_vl")
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
@pytest.mark.parametrize(("family", "programs"), [("qwen2_5_vl", ["_mlp", "_norm"]), ("qwen3_vl", ["_mlp", "_norm"])])
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
