"""Gated delta nets in packed rows, held against the recurrence column by column, in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlmrl.extras.families import delta_net
from vlmrl.extras.families.conform.float64 import throughout
from vlmrl.extras.families.delta_net import Carried
from vlmrl.policy.pack import layout_of
from vlmrl.policy.runs import ColumnRun, RowLayout

HIDDEN = 12
MIXED = [(70, (5, 1, 67)), (3, (2, 9)), (1, (4,)), (2, (0, 3, 1)), (9, ())]
"""(columns of a prompt, of its answers): more than a chunk of 64, fewer than the convolution, an answer alone, empty ones, none."""


@functools.cache
def net() -> Any:
    """Heads of values are twice those of keys, and what was written long ago is still there."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    sizes: dict[str, Any] = {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 3}
    config: Any = Qwen3_5TextConfig(hidden_size=HIDDEN, num_hidden_layers=1, layer_types=["linear_attention"], **sizes)
    layer = Qwen3_5GatedDeltaNet(config, 0).double()
    g = torch.Generator().manual_seed(0)
    for name, p in layer.named_parameters():
        p.data.copy_(torch.full(p.shape, -4.0) if name == "A_log" else torch.randn(p.shape, generator=g) * (0.5 if p.ndim > 1 else 1))
    delta_net.heed(torch.nn.Sequential(layer))
    return layer


def columns(count: int, seed: int = 0) -> Tensor:
    return torch.randn(1, count, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def recurrence(x_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The layer over one row, from its weights and the paper's equation 10. (output, inputs of the convolution, memory)."""
    net_ = net()
    weights = {name: p.detach() for name, p in net_.named_parameters()}
    qkv = x_TH @ weights["in_proj_qkv.weight"].T
    taps = weights["conv1d.weight"][:, 0]  # [C, K]
    padded = torch.cat([qkv.new_zeros(taps.shape[1] - 1, qkv.shape[1]), qkv])
    out: list[Tensor] = []
    memory = qkv.new_zeros(2, 4, 3)
    for t, x in enumerate(x_TH):
        wide = torch.nn.functional.silu((padded[t : t + taps.shape[1]].T * taps).sum(1))
        q, k, v = wide[:4], wide[4:8], wide[8:].view(2, 3)
        q, k = (y * (y.square().sum() + 1e-6).rsqrt() for y in (q, k))
        beta = (weights["in_proj_b.weight"] @ x).sigmoid()
        alpha = (-weights["A_log"].exp() * torch.nn.functional.softplus(weights["in_proj_a.weight"] @ x + weights["dt_bias"])).exp()
        memory = memory * alpha[:, None, None]
        memory = memory + torch.einsum("k,hv->hkv", k, beta[:, None] * (v - torch.einsum("hkv,k->hv", memory, k)))
        o = torch.einsum("hkv,k->hv", memory, q) / 2
        z = (weights["in_proj_z.weight"] @ x).view(2, 3)
        o = weights["norm.weight"] * o * (o.square().mean(-1, keepdim=True) + net_.layer_norm_epsilon).rsqrt() * torch.nn.functional.silu(z)
        out.append(weights["out_proj.weight"] @ o.reshape(-1))
    return torch.stack(out), padded[len(padded) - taps.shape[1] + 1 :], memory


def pathed(layout: RowLayout, place: int) -> Tensor:
    """Columns that a run sees from the top on, with its own."""
    return torch.cat([torch.arange(layout.runs[p].start, layout.runs[p].stop) for p in layout.path(place)])


def checked(layout: RowLayout) -> None:
    x = columns(layout.tokens)
    with throughout(True), torch.no_grad():
        got, ends = delta_net.packed(net(), x, layout, keep=True)
    for place, run in enumerate(layout.runs):
        expected, inputs, memory = recurrence(x[0, pathed(layout, place)])
        assert (got[0, run.start : run.stop] - expected[run.start - run.stop :]).abs().max() < 1e-10
        assert (ends[place].inputs[0] - inputs).abs().max() < 1e-10
        assert (ends[place].memory[0] - memory).abs().max() < 1e-10


def test_answers_go_on_from_what_their_prompt_left() -> None:
    checked(layout_of(MIXED))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), max_size=4)), min_size=1, max_size=4))
def test_any_groups(groups: list[tuple[int, list[int]]]) -> None:
    checked(layout_of(groups))


@dataclass(frozen=True)
class Tree(RowLayout):
    """A row of runs that are given."""

    given: tuple[ColumnRun, ...]

    @functools.cached_property
    def runs(self) -> tuple[ColumnRun, ...]:
        return self.given


TREE = Tree((ColumnRun(0, 5, 20, -1), ColumnRun(5, 6, 13, 0), ColumnRun(6, 9, 9, 1), ColumnRun(9, 13, 13, 1), ColumnRun(13, 20, 20, 0)))
"""A run of one column between others: what the convolution reads behind it lies in two runs."""


def test_deeper_trees() -> None:
    checked(TREE)


def test_gradients_are_those_of_rows_alone() -> None:
    """Of every column and every weight, by transformers' own layer; the prompt's column gets what all answers send it."""
    layout, net_ = layout_of(MIXED), net()
    x, weights = columns(layout.tokens).requires_grad_(), columns(layout.tokens, seed=1)[0]
    wanted = [x, *net_.parameters()]
    with throughout(True):
        out, _ = delta_net.packed(net_, x, layout)
        got = torch.autograd.grad((out[0] * weights).sum(), wanted)
        total = torch.zeros((), dtype=torch.float64)
        for place, run in enumerate(layout.runs):
            alone = net_(x[:, pathed(layout, place)])[0, run.start - run.stop :]
            total = total + (alone * weights[run.start : run.stop]).sum()
        expected = torch.autograd.grad(total, wanted)
    assert max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)) < 1e-10
    assert min(float(g.abs().max()) for g in got) > 1e-3


def test_gradcheck() -> None:
    layout = layout_of([(3, (2, 1))])
    with throughout(True):
        assert torch.autograd.gradcheck(lambda x: delta_net.packed(net(), x, layout)[0], columns(layout.tokens).requires_grad_())


def test_two_prompts_do_not_touch() -> None:
    layout = layout_of([(4, (3, 2)), (6, (2, 5))])
    first = layout.blocks[0].end
    x = columns(layout.tokens).requires_grad_()
    with throughout(True):
        out, _ = delta_net.packed(net(), x, layout)
    (into,) = torch.autograd.grad(out[:, first:].square().sum(), x)
    assert not into[:, :first].any()
    assert into[:, first:].abs().min() > 0
    (into,) = torch.autograd.grad(delta_net.packed(net(), x, layout)[0][:, 4:7].square().sum(), x)
    assert not into[:, 7:].any(), "an answer does not see the next one"


def test_one_token_at_a_time_goes_on_as_whole_rows_do() -> None:
    """A batch of answers to two prompts, from what a prefill recorded."""
    prompts, net_ = layout_of([(7, ()), (2, ())]), net()
    tokens, owner = columns(3 * 4, seed=2).view(4, 3, HIDDEN), torch.tensor([0, 0, 1])
    record: list[Carried] = []
    with throughout(True), torch.no_grad():
        x = columns(prompts.tokens)
        net_(x, prefix_layout=prompts, record=record)
        (carried,) = record
        carried = carried.select(owner)
        for t, token in enumerate(tokens):
            out, carried = delta_net.step(net_, token[None], carried)
            for n, of in enumerate(owner.tolist()):
                block = prompts.blocks[of]
                expected, _, _ = recurrence(torch.cat([x[0, block.start : block.end], tokens[: t + 1, n]]))
                assert (out[0, n] - expected[-1]).abs().max() < 1e-10


@pytest.mark.parametrize("part", ["inputs", "memory"])
def test_a_state_that_is_not_forked_would_be_seen(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of([(9, (4, 4))])
    joined = Carried.joined

    def lost(parts: Sequence[Carried]) -> Carried:
        out = joined(parts)
        return out._replace(**{part: torch.zeros_like(getattr(out, part))})

    monkeypatch.setattr(Carried, "joined", staticmethod(lost))
    with pytest.raises(AssertionError):
        checked(layout)


def test_short_runs_are_not_padded_to_the_longest() -> None:
    lengths = [100, 3, 51, 4, 49, 2]
    layout = layout_of([(n, ()) for n in lengths])
    parts = list(delta_net._alike(layout, range(len(lengths))))
    assert parts == [(0, 2), (4,), (1, 3, 5)]


def test_what_no_packed_row_has_is_refused() -> None:
    layout, net_ = layout_of([(2, (1,))]), net()
    x = columns(3)
    for more in ({"attention_mask": torch.ones(1, 3)}, {"cache_params": object()}, {"prefix_columns": object()}):
        with pytest.raises(RuntimeError, match="a packed row whole"):
            net_(x, prefix_layout=layout, **more)
    for wrong in (columns(4), columns(3).expand(2, -1, -1)):
        with pytest.raises(RuntimeError, match="describes 3 tokens"):
            net_(wrong, prefix_layout=layout)


def test_without_a_layout_the_layer_is_its_own() -> None:
    net_, x = net(), columns(5)
    with torch.no_grad():
        assert torch.equal(net_(x, use_cache=False), type(net_).forward(net_, x))
    found: Sequence[str] = delta_net.heed(SimpleNamespace(named_modules=lambda: [("a", net_), ("b", torch.nn.Linear(1, 1))]))
    assert found == ["a"]
