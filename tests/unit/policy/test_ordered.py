"""Errors are asked for around the backward of attention, and nowhere else."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from vlmrl.policy import ordered as module
from vlmrl.policy.ordered import ordered


def mode() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


class Attention(torch.autograd.Function):
    """A product that notes the mode of its forward, where torch chooses a kernel, and of its backward."""

    chosen: ClassVar[list[tuple[bool, bool]]] = []
    seen: ClassVar[list[tuple[bool, bool]]] = []

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        Attention.chosen.append(mode())
        ctx.save_for_backward(q, k, v)
        return q * k * v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        Attention.seen.append(mode())
        q, k, v = ctx.saved_tensors
        return grads[0] * k * v, grads[0] * q * v, grads[0] * q * k


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNORDERED", frozenset({"cpu"}))
    Attention.seen.clear()
    Attention.chosen.clear()


def gradients(given: tuple[Tensor, ...], wrap: bool, as_tuple: bool = False) -> list[Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out: Any = Attention.apply(q, k, v)
        return (out, None) if as_tuple else out

    out = ordered(attend, *(x * 2 for x in given)) if wrap else attend(*(x * 2 for x in given))
    out = out[0] if as_tuple else out
    return list(torch.autograd.grad(torch.sin(out).sum(), [x for x in given if x.requires_grad]))


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("wants", [(True, True, True), (True, False, False), (False, False, True)])
def test_errors_are_asked_for_in_attention_alone(wants: tuple[bool, ...], as_tuple: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    given = tuple(torch.randn(5, requires_grad=want) for want in wants)
    got = gradients(given, True, as_tuple)
    assert Attention.seen == Attention.chosen == [(True, False)]
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    for one, other in zip(got, gradients(given, False), strict=True):
        assert torch.equal(one, other)
    assert Attention.seen == [(True, False), (True, True)]


@pytest.mark.parametrize("asked", [(False, False), (True, False)])
def test_other_modes_are_left_alone(asked: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(asked[0], warn_only=asked[1])
    gradients(tuple(torch.randn(5, requires_grad=True) for _ in range(3)), True)
    assert Attention.seen == [asked]


def test_under_recomputation_and_in_many_layers() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)

    def layer(x: Tensor) -> Tensor:
        return x + torch.tanh(ordered(lambda q, k, v: Attention.apply(q, k, v), x.sin(), x.cos(), x * 0.5))

    def net(x: Tensor, recompute: bool) -> Tensor:
        for _ in range(4):
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)  # pyright: ignore
        return x

    x = torch.randn(7, requires_grad=True)
    (plain,) = torch.autograd.grad(net(x, False).sum(), x)
    (again,) = torch.autograd.grad(net(x, True).sum(), x)
    assert torch.equal(plain, again)
    assert Attention.seen == [(True, False)] * 8
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_a_backward_that_fails_leaves_no_errors_to_the_next_pass() -> None:
    """An update that runs out of memory is tried again with smaller micro-batches."""
    torch.use_deterministic_algorithms(True, warn_only=True)

    class Full(Attention):
        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            raise torch.OutOfMemoryError("full")

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError):
        ordered(lambda q, k, v: Full.apply(q, k, v), x, x, x).sum().backward()
    gradients(tuple(torch.randn(5, requires_grad=True) for _ in range(3)), True)
    assert Attention.seen == [(True, False)]
    assert mode() == (True, True)


def test_nothing_is_wrapped_where_there_is_no_backward() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    with torch.no_grad():
        out = ordered(lambda q, k, v: q + k + v, *(torch.ones(2) for _ in range(3)))
    assert out.tolist() == [3.0, 3.0]
