"""The CUDA kernels on CUDA. The backends of the packed-row attention against the dense definition, values and gradients, through the
function that the models call and with the types that they give it: in bfloat16 runs query and key come in float32 and the value in
bfloat16. The tower's windows in one call, draws, and whether the kernels that stand for torch's on the CPU do what torch's do."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
import torch

from tests.support import kernels as emulated
from tests.support import tiny as tiny_module
from vlmrl.extras.agents.tree import TreeLayout
from vlmrl.policy import attention, flex, kernels, windows
from vlmrl.policy.attention import choose, prefix_attention
from vlmrl.policy.pack import layout_of
from vlmrl.policy.runs import RowLayout
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.draw import sample
from vlmrl.types import GenerationSettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LAYOUT = layout_of([(300, (70, 5, 128)), (64, (9,)), (129, (33, 33))])
TREE = TreeLayout((-1, 0, 1, 2, 2, 1, 0, -1, 7, 7), (300, 70, 33, 5, 128, 40, 9, 64, 33, 130))


def run(name: str, dtype: torch.dtype, layout: RowLayout = LAYOUT) -> list[torch.Tensor]:
    """Output and gradients of query, key and value, float32."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, layout.tokens, 64, generator=g).to("cuda").requires_grad_() for h in (8, 2, 2))
    with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        out, _ = prefix_attention(None, q, k, v.to(dtype), None, fallback=unused, scaling=0.125, prefix_layout=layout, prefix_backend=name)
    assert out.dtype == dtype
    weight = torch.randn(out.shape, generator=g).to("cuda")
    return [out.detach().float(), *torch.autograd.grad((out.float() * weight).sum(), (q, k, v))]


def unused(*_: object, **__: object) -> None:
    raise AssertionError("a packed row goes through a backend")


@pytest.mark.parametrize("layout", [LAYOUT, TREE], ids=["answers", "tree"])
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("two_call", torch.float32, 1e-4),
        ("flex", torch.float32, 1e-3),
        ("two_call", torch.bfloat16, 2e-2),
        ("flex", torch.bfloat16, 2e-2),
        ("flash", torch.bfloat16, 2e-2),
        ("flash-attn", torch.bfloat16, 2e-2),
    ],
)
def test_equals_the_dense_definition(
    name: str, dtype: torch.dtype, tolerance: float, layout: RowLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "flash-attn" and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
    if name.startswith("flash"):
        monkeypatch.setattr(attention, "has_flash_package", lambda: name == "flash-attn")
        name = "flash"
    for got, expected in zip(run(name, dtype, layout), run("dense", torch.float32, layout), strict=True):
        scale = expected.abs().max()
        assert (got.float() - expected).abs().max() <= tolerance * scale


def test_auto_takes_a_cuda_backend() -> None:
    assert choose("auto", torch.device("cuda"), torch.bfloat16)[0] == ("flash" if kernels.lacks(torch.device("cuda")) is None else "flex")


def test_the_same_gradients_twice_in_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no more than a warning is asked for, as the trainer does."""
    monkeypatch.setattr(attention, "has_flash_package", lambda: False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    first = run("flash", torch.bfloat16)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run("flash", torch.bfloat16), strict=True))


def test_the_kernel_of_the_cpu_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output, log-sum-exp and gradients of both, also for queries without keys and keys without queries."""
    g = torch.Generator().manual_seed(0)
    real = kernels.FLASH
    pairs = [(7, 0), (0, 130), (200, 300), (1, 1), (0, 3)]
    q, k, v = (torch.randn(n, h, 64, generator=g).to(torch.bfloat16) for n, h in ((208, 8), (434, 2), (434, 2)))
    grad = torch.randn(q.shape, generator=g).to(torch.bfloat16)
    for causal in (True, False):
        found: list[list[torch.Tensor]] = []
        for device, operations in (("cuda", real), ("cpu", emulated.ATEN_16)):
            at = kernels.Lengths.of(pairs, causal=causal, device=torch.device(device))
            monkeypatch.setattr(kernels, "FLASH", operations)
            here = [x.to(device) for x in (q, k, v)]
            out, lse, state = kernels._forward(*here, at, 0.125)
            grads = kernels._backward(grad.to(device), *here, out, lse, at, 0.125, state)
            found.append([x.cpu().float() for x in (out, lse, *grads)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)


def test_many_lengths_of_flex_are_compiled_a_few_times() -> None:
    seen: list[float] = []
    for n in range(30):
        layout = layout_of([(200 + 111 * n, (30, 10 + n))])
        q, k, v = (torch.randn(1, h, layout.tokens, 64, device="cuda") for h in (8, 2, 2))
        began = time.perf_counter()
        flex.flex(q, k, v, layout, 0.125)
        torch.cuda.synchronize()
        seen.append(time.perf_counter() - began)
    assert sum(1 for seconds in seen if seconds > 1) <= 3, seen


def test_the_tower_in_one_call_equals_sdpa(tiny_files: tuple[Path, Path]) -> None:
    found: list[list[torch.Tensor]] = []
    for name in ("sdpa", windows.TOWER):
        loaded = tiny_module.load(*tiny_files)
        policy = loaded.policy
        policy.model.to("cuda")
        policy.device, policy.compute = torch.device("cuda"), torch.bfloat16
        policy.model.set_attn_implementation({"text_config": "vlmrl_sdpa", "vision_config": name})
        handles = [handle for prompt in loaded.prompts(3) for handle in prompt.media]
        features = VisionCache(loaded.store, budget_bytes=2**26).features(policy, handles, train=False)
        found.append([feature.merged.float().cpu() for feature in features.values()])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() <= 2e-2 * one.abs().max()


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_draws_have_one_order(top_p: float) -> None:
    """No operation that CUDA has only without one, and the tokens of the CPU."""
    torch.use_deterministic_algorithms(True)
    logits = torch.randn(64, 151_936, generator=torch.Generator().manual_seed(0)) * 3
    draws = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    settings = GenerationSettings(max_new_tokens=1, top_p=top_p)
    first = sample(logits.cuda(), draws.cuda(), settings)[0]
    assert all(torch.equal(first, sample(logits.cuda(), draws.cuda(), settings)[0]) for _ in range(5))
    assert (first.cpu() != sample(logits, draws, settings)[0]).sum() <= 1, "log_softmax rounds otherwise"
