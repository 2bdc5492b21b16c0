"""The backend `flex`: its result, its mask, what making the mask costs, and how often it is compiled."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from vlmrl.policy import flex as module
from vlmrl.policy.attention import _BACKENDS
from vlmrl.policy.pack import layout_of
from vlmrl.run.open_stage import warm_up

CPU = torch.device("cpu")
GROUPS = st.lists(st.tuples(st.integers(1, 300), st.lists(st.integers(0, 200), min_size=0, max_size=4)), min_size=1, max_size=3)
PARTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices", "full_q_num_blocks")


def test_forward_equals_the_dense_definition() -> None:
    layout = layout_of([(5, (3, 1, 4)), (130, (2, 9))])
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, layout.tokens, 16, generator=g) for h in (4, 2, 2))
    got = module.flex(q, k, v, layout, 0.25)
    assert torch.allclose(got, _BACKENDS["dense"](q, k, v, layout, 0.25), atol=1e-5)


@settings(max_examples=30)
@given(groups=GROUPS)
def test_the_mask_is_the_one_that_torch_makes_of_all_pairs(groups: list[tuple[int, list[int]]]) -> None:
    layout = layout_of(groups)
    got: BlockMask = module.block_mask(layout, CPU)
    n = -(-layout.tokens // module.BLOCK) * module.BLOCK
    expected = create_block_mask(got.mask_mod, None, None, n, n, device="cpu", BLOCK_SIZE=module.BLOCK)
    assert got.seq_lengths == expected.seq_lengths
    assert got.BLOCK_SIZE == expected.BLOCK_SIZE
    for name in (*PARTS, "full_q_indices"):
        one, other = getattr(got, name), getattr(expected, name)
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    at = torch.arange(layout.tokens)
    assert torch.equal(got.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None]), layout.allow())


def test_making_the_mask_never_holds_all_pairs() -> None:
    layout = layout_of([(5000, (300, 700, 20)), (1500, (400, 80))])
    assert layout.tokens == 8000
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max([largest, *(t.numel() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor))])
            return out

    module.block_mask.cache_clear()
    with Watch():
        module.block_mask(layout, CPU)
    assert 0 < largest <= 2 * 8192, "a few numbers for each token, and one for each pair of blocks"


def test_many_lengths_are_compiled_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives up after eight programs and then holds all N x N scores, with a warning."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(module, "COMPILED", {"cpu"})
    module._compiled.cache_clear()
    torch._dynamo.reset()
    try:
        for n in range(50):
            layout = layout_of([(20 + 17 * n, (3, 1 + n)), (4, (2, 2))])
            q, k, v = (torch.randn(1, h, layout.tokens, 8) for h in (2, 1, 1))
            got = module.flex(q, k, v, layout, 0.3)
            if n % 10 == 0:
                assert torch.allclose(got, _BACKENDS["dense"](q, k, v, layout, 0.3), atol=1e-5)
    finally:
        module._compiled.cache_clear()
        torch._dynamo.reset()
    assert 1 <= len(compiled) <= 3


def test_it_is_compiled_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without and with a gradient, in the shapes and the type of the decoder, on a row that shares a prompt."""
    seen: list[tuple[Any, ...]] = []

    def compiled() -> Any:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
            out = q + k.mean() + v.mean()  # torch's own has no backward on a CPU
            seen.append((tuple(q.shape), tuple(k.shape), q.dtype, more["enable_gqa"], torch.is_grad_enabled()))
            if out.requires_grad:
                out.register_hook(lambda _: seen.append(("backward",)))
            return out

        return run

    monkeypatch.setattr(module, "COMPILED", {"cpu"})
    monkeypatch.setattr(module, "_compiled", compiled)
    config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, hidden_size=64)
    module.warm_up(config, compute=torch.bfloat16, device=torch.device("cpu"))
    call = ((1, 4, 2 * module.BLOCK, 16), (1, 2, 2 * module.BLOCK, 16), torch.bfloat16, True)
    assert seen == [(*call, False), (*call, True), ("backward",)]


@pytest.mark.parametrize(("backend", "times"), [("flex", 2), ("merge", 0)])
def test_a_stage_compiles_it_on_rank_0_first(backend: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "COMPILED", {"cpu"})
    monkeypatch.setattr(module, "warm_up", lambda config, **_: seen.append(config))
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: "text"))
    policy = SimpleNamespace(subject=None, prefix_backend=backend, device=torch.device("cpu"), compute=torch.float32, model=model)
    warm_up(cast(Any, policy))
    assert seen == ["text"] * times
