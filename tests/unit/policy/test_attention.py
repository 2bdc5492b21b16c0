"""Backends of the packed-row attention against the dense definition, values and gradients, in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kernels
from vlmrl.errors import ConfigError
from vlmrl.policy.attention import _BACKENDS, choose, prefix_attention, require
from vlmrl.policy.flash import varlen
from vlmrl.policy.pack import PrefixLayout, layout_of

GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4)), min_size=1, max_size=3)


def emulated_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: PrefixLayout, scale: float) -> torch.Tensor:
    return varlen(q, k, v, layout, scale, kernels.varlen)


def run(backend, layout: PrefixLayout, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, h, layout.tokens, 8, dtype=torch.float64, generator=g, requires_grad=True) for h in (4, 2, 2))
    out = backend(q, k, v, layout, 0.3)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=g)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]


@pytest.mark.parametrize("backend", [_BACKENDS["merge"], _BACKENDS["two_call"], emulated_varlen], ids=["merge", "two_call", "flash plan"])
@settings(max_examples=40)
@given(groups=GROUPS, seed=st.integers(0, 3))
def test_equals_the_dense_definition(backend, groups: list[tuple[int, list[int]]], seed: int) -> None:
    layout = layout_of(groups)
    for got, expected in zip(run(backend, layout, seed), run(_BACKENDS["dense"], layout, seed), strict=True):
        assert torch.allclose(got, expected, atol=1e-12)


def test_every_backend_has_a_name_in_the_schema() -> None:
    from vlmrl.config.schema import ModelSection

    known = set(ModelSection.model_fields["prefix_backend"].annotation.__args__)
    assert known == {"auto", *_BACKENDS}


def test_choice_on_the_cpu_and_refusals() -> None:
    cpu = torch.device("cpu")
    assert choose("auto", cpu, torch.float32)[0] == "merge"
    assert choose("dense", cpu, torch.float32)[0] == "dense"
    for wanted in ("flash", "flex"):
        with pytest.raises(ConfigError, match=wanted):
            choose(wanted, cpu, torch.float32)
    with pytest.raises(ConfigError, match="merge"):
        choose("merge", torch.device("cuda"), torch.float32)
    assert choose("auto", torch.device("cuda"), torch.float32)[0] == "flex"


def test_models_that_would_misread_a_packed_row_are_refused() -> None:
    fine = SimpleNamespace(_attn_implementation="vlmrl_sdpa", layer_types=["full_attention"])
    require(fine)
    with pytest.raises(ConfigError, match="eager"):
        require(SimpleNamespace(_attn_implementation="eager", layer_types=["full_attention"]))
    for kind in ("sliding_attention", "linear_attention"):
        with pytest.raises(ConfigError, match=kind):
            require(SimpleNamespace(_attn_implementation="vlmrl_sdpa", layer_types=["full_attention", kind]))


def test_a_mask_or_a_wrong_length_with_a_layout_is_an_error() -> None:
    layout = layout_of([(2, (1,))])
    q = torch.zeros(1, 2, 3, 4)
    common = {"fallback": None, "prefix_layout": layout}
    with pytest.raises(RuntimeError, match="mask"):
        prefix_attention(None, q, q, q, torch.ones(1, 1, 3, 3), **common)
    longer = torch.zeros(1, 2, 4, 4)
    with pytest.raises(RuntimeError, match="describes 3"):
        prefix_attention(None, longer, longer, longer, None, **common)


def test_without_a_layout_the_models_own_kernel_runs() -> None:
    seen = {}

    def own(module, query, key, value, mask, **kwargs):
        seen.update(kwargs)
        return F.scaled_dot_product_attention(query, key, value), None

    q = torch.randn(2, 2, 3, 4)
    out, _ = prefix_attention(None, q, q, q, None, fallback=own, scaling=0.5)
    assert out.shape == q.shape
    assert seen == {"scaling": 0.5, "dropout": 0.0}
