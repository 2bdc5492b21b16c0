"""Trees of segments: who sees whom against ancestors counted one by one, and every backend against the dense definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from tests.support import kernels as emulated
from vlmrl.extras.agents import tree_attention
from vlmrl.extras.agents.tree import TreeLayout, preorder
from vlmrl.policy import flex, kernels
from vlmrl.policy.attention import _BACKENDS
from vlmrl.policy.flash import varlen
from vlmrl.policy.pack import layout_of
from vlmrl.policy.runs import RowLayout

CPU = torch.device("cpu")


@st.composite
def tries(draw: st.DrawFn, most: int = 40, longest: int = 5) -> TreeLayout:
    """Trees of 2 to `most` segments, roots among them, children hung anywhere."""
    count = draw(st.integers(2, most))
    parents = [draw(st.integers(-1, place - 1)) for place in range(count)]
    order = preorder(parents)
    at = {place: n for n, place in enumerate(order)} | {-1: -1}
    lengths = draw(st.lists(st.integers(1, longest), min_size=count, max_size=count))
    return TreeLayout(tuple(at[parents[place]] for place in order), tuple(lengths))


def of_ancestors(layout: TreeLayout) -> torch.Tensor:
    """The mask, by walking up from every column."""
    owner = [place for place, n in enumerate(layout.lengths) for _ in range(n)]
    out = torch.zeros(len(owner), len(owner), dtype=torch.bool)
    for q, of_q in enumerate(owner):
        above: set[int] = set()
        while of_q >= 0:
            above.add(of_q)
            of_q = layout.parents[of_q]
        for k in range(q + 1):
            out[q, k] = owner[k] in above
    return out


@settings(max_examples=60)
@given(tries())
def test_one_number_per_column_says_who_sees_whom(layout: TreeLayout) -> None:
    wanted = of_ancestors(layout)
    assert torch.equal(layout.allow(), wanted)
    assert layout.pairs == int(wanted.sum())
    covered = [column for run in layout.runs for column in range(run.start, run.stop)]
    assert covered == list(range(layout.tokens)) == list(range(sum(layout.lengths)))
    for place, run in enumerate(layout.runs):
        seen = [column for n in layout.path(place) for column in range(layout.runs[n].start, layout.runs[n].stop)]
        assert wanted[run.stop - 1].nonzero()[:, 0].tolist() == seen
        assert layout.above[place] == len(seen) - (run.stop - run.start)


def test_runs_by_hand() -> None:
    # root, a1, o1, a2 | a2', o2' | a1'': three answers, two of which share their first turn
    layout = TreeLayout((-1, 0, 1, 2, 2, 4, 0), (3, 2, 2, 1, 2, 1, 4))
    assert layout.starts == (0, 3, 5, 7, 8, 10, 11)
    assert layout.subtree_ends == (15, 11, 11, 8, 11, 11, 15)
    assert [tuple(run) for run in layout.runs] == [(0, 3, 15, -1), (3, 7, 11, 0), (7, 8, 8, 1), (8, 11, 11, 1), (11, 15, 15, 0)]
    assert layout.ends.tolist() == [15] * 3 + [11] * 4 + [8] + [11] * 3 + [15] * 4
    assert layout.columns([0, 1, 2, 4]).tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_a_prompt_with_its_answers_is_a_tree_of_depth_one() -> None:
    prefix = layout_of([(3, (2, 0, 1)), (4, (2,))])
    tree = TreeLayout((-1, 0, 0, -1, 3), (3, 2, 1, 4, 2))
    assert tree.runs == prefix.runs
    assert torch.equal(tree.allow(), prefix.allow())


def test_what_is_no_tree_in_preorder() -> None:
    assert preorder([-1, 0, 0, 1, -1]) == [0, 1, 3, 2, 4]
    with pytest.raises(ValueError, match="in front of it"):
        preorder([0])
    with pytest.raises(ValueError, match="preorder"):
        TreeLayout((-1, 0, 0, 1), (1, 1, 1, 1))
    with pytest.raises(ValueError, match="at least one column"):
        TreeLayout((-1, 0), (2, 0))
    assert TreeLayout((), ()).tokens == 0


def emulated_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: RowLayout, scale: float) -> torch.Tensor:
    return varlen(q, k, v, layout, scale, emulated.varlen)


def run(backend: Any, layout: RowLayout, seed: int) -> list[torch.Tensor]:
    """Output and gradients."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, h, layout.tokens, 8, dtype=torch.float64, generator=g, requires_grad=True) for h in (4, 2, 2))
    out = backend(q, k, v, layout, 0.3)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=g)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]


NAMED = {"merge": _BACKENDS["merge"], "two_call": _BACKENDS["two_call"], "flash plan": emulated_varlen, "flash": kernels.segments}


@pytest.mark.parametrize("name", NAMED)
@settings(max_examples=40)
@given(layout=tries(), seed=st.integers(0, 3))
def test_backends_equal_the_dense_definition(name: str, layout: TreeLayout, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FLASH", emulated.ATEN)
        got = run(NAMED[name], layout, seed)
    for one, other in zip(got, run(_BACKENDS["dense"], layout, seed), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("backend", [tree_attention.merge, tree_attention.two_call])
def test_runs_of_a_prompt_with_answers_give_what_its_own_code_gives(backend: Any) -> None:
    layout = layout_of([(5, (3, 1, 4)), (3, (2,)), (4, ()), (6, (2, 0, 9))])
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, layout.tokens, 8, dtype=torch.float64, generator=g) for _ in range(3))
    assert torch.allclose(backend(q, k, v, layout, 0.3), _BACKENDS["merge"](q, k, v, layout, 0.3), atol=1e-12)


@pytest.mark.parametrize("layout", [layout_of([(5, (3, 1, 4)), (3, (2,))]), TreeLayout((-1, 0, 0), (5, 3, 4))], ids=["answers", "tree"])
def test_tensors_whose_heads_do_not_stand_side_by_side(layout: Any) -> None:
    """The CPU kernel would misread them without a word."""

    def scattered(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)

    g = torch.Generator().manual_seed(0)
    sizes = [(1, heads, layout.tokens, 8) for heads in (4, 2, 2, 4)]
    *inputs, grad = (torch.randn(size, dtype=torch.float64, generator=g) for size in sizes)
    expected: list[torch.Tensor] = []
    for backend, change in (("dense", torch.clone), ("merge", scattered)):
        own = [change(x).requires_grad_() for x in inputs]
        out = _BACKENDS[backend](*own, layout, 0.3)
        found = [out, *torch.autograd.grad(out, own, change(grad))]
        expected = expected or found
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, expected, strict=True))


def test_sixteen_bits_are_rounded_once_however_deep() -> None:
    """A thread of twenty branches: each column has parts from twenty runs above it."""
    parents = [-1, *(n for depth in range(20) for n in (2 * depth, 2 * depth))]
    order = preorder(parents)
    at = {place: n for n, place in enumerate(order)} | {-1: -1}
    layout = TreeLayout(tuple(at[parents[place]] for place in order), (8,) * len(parents))
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, layout.tokens, 16, generator=g).bfloat16() for _ in range(3))
    exact = _BACKENDS["dense"](*(x.double() for x in (q, k, v)), layout, 0.25)
    rounding = float((exact.bfloat16().double() - exact).abs().max())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FLASH", emulated.ATEN_16)
        for backend in (_BACKENDS["merge"], kernels.segments):
            assert float((backend(q, k, v, layout, 0.25).double() - exact).abs().max()) < 4 * rounding


@settings(max_examples=20)
@given(layout=tries(most=20, longest=90))
def test_the_mask_of_flex_is_the_one_that_torch_makes_of_all_pairs(layout: TreeLayout) -> None:
    got = flex.block_mask(layout, CPU)
    n = -(-layout.tokens // flex.BLOCK) * flex.BLOCK
    expected = create_block_mask(got.mask_mod, None, None, n, n, device="cpu", BLOCK_SIZE=flex.BLOCK)
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "full_q_indices"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    at = torch.arange(layout.tokens)
    assert torch.equal(got.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None]), layout.allow())


def test_flex_equals_the_dense_definition() -> None:
    layout = TreeLayout((-1, 0, 1, 1, 0, -1), (70, 30, 60, 9, 40, 20))
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, layout.tokens, 16, generator=g) for h in (4, 2, 2))
    assert torch.allclose(flex.flex(q, k, v, layout, 0.25), _BACKENDS["dense"](q, k, v, layout, 0.25), atol=1e-5)
