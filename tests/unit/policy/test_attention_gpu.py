"""The CUDA backends of the packed-row attention against the dense definition, values and gradients, through the function that the
models call and with the types that they give it: in bfloat16 runs query and key come in float32 and the value in bfloat16."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from vlmrl.policy.attention import choose, prefix_attention
from vlmrl.policy.pack import layout_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LAYOUT = layout_of([(300, (70, 5, 128)), (64, (9,)), (129, (33, 33))])


def run(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Output and gradients of query, key and value, float32."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, LAYOUT.tokens, 64, generator=g).to("cuda").requires_grad_() for h in (8, 2, 2))
    with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        out, _ = prefix_attention(None, q, k, v.to(dtype), None, fallback=unused, scaling=0.125, prefix_layout=LAYOUT, prefix_backend=name)
    assert out.dtype == dtype
    weight = torch.randn(out.shape, generator=g).to("cuda")
    return [out.detach().float(), *torch.autograd.grad((out.float() * weight).sum(), (q, k, v))]


def unused(*_: object, **__: object) -> None:
    raise AssertionError("a packed row goes through a backend")


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("two_call", torch.float32, 1e-4),
        ("flex", torch.float32, 1e-3),
        ("two_call", torch.bfloat16, 2e-2),
        ("flex", torch.bfloat16, 2e-2),
        ("flash", torch.bfloat16, 2e-2),
    ],
)
def test_equals_the_dense_definition(name: str, dtype: torch.dtype, tolerance: float) -> None:
    if name == "flash" and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
    for got, expected in zip(run(name, dtype), run("dense", torch.float32), strict=True):
        scale = expected.abs().max()
        assert (got.float() - expected).abs().max() <= tolerance * scale


def test_auto_takes_a_cuda_backend() -> None:
    assert choose("auto", torch.device("cuda"), torch.bfloat16)[0] in ("flash", "flex")
