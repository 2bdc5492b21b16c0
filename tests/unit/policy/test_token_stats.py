"""Quantities of the logits in the head: by hand, against whole rows in float64, their gradients, and that rows come in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vlmrl.policy.forward import read_tokens
from vlmrl.policy.head import HeadOptions, TokenStat
from vlmrl.policy.token_stats import token_stats

M, V, H = 7, 11, 5
FORBIDDEN = (2, 9)


def collision(logp_MV: Tensor) -> Tensor:
    return (2 * logp_MV).exp().sum(1)


def margin(logp_MV: Tensor) -> Tensor:
    first, second = logp_MV.topk(2).values.exp().unbind(1)
    return first - second


def entropy(logp_MV: Tensor) -> Tensor:
    return -(logp_MV.exp() * logp_MV).sum(1)


def mean_logp(logp_MV: Tensor) -> Tensor:
    return logp_MV.mean(1)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"collision": collision, "margin": margin, "entropy": entropy, "mean_logp": mean_logp}


def stats(*gradient: str) -> dict[str, TokenStat]:
    return {name: TokenStat(function, name in gradient) for name, function in FUNCTIONS.items()}


def data(dtype: torch.dtype = torch.float64, m: int = M) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    hidden, head, bias = (torch.randn(*size, generator=g, dtype=torch.float64).to(dtype) for size in ((m, H), (V, H), (V,)))
    return hidden.requires_grad_(), head.requires_grad_(), bias.requires_grad_()


def dense(
    hidden: Tensor, head: Tensor, bias: Tensor | None, *, temperature: float, forbidden: tuple[int, ...], cap: float | None
) -> Tensor:
    """The log-probs of every token that may be drawn, whole."""
    z = hidden @ head.T if bias is None else hidden @ head.T + bias
    z = z if cap is None else cap * (z / cap).tanh()
    allowed = [i for i in range(V) if i not in forbidden]
    return (z / temperature)[:, allowed].log_softmax(-1)


def test_by_hand() -> None:
    """Logits (0, log 3): p = (1/4, 3/4); at temperature 1/2 p = (1/10, 9/10); with a third token of the same size that is forbidden."""
    hidden = torch.ones(1, 1, dtype=torch.float64)
    head = torch.tensor([[0.0], [math.log(3.0)], [7.0]], dtype=torch.float64)
    for temperature, p, apart in ((1.0, 0.0625 + 0.5625, 0.5), (0.5, 0.01 + 0.81, 0.8)):
        found = token_stats(hidden, head, stats(), temperature=temperature, forbidden=(2,))
        assert [float(found[0]), float(found[1])] == pytest.approx([p, apart], abs=1e-15)


@pytest.mark.parametrize("block", [1, 2 * V, 3 * V + 1, 10**6])
@pytest.mark.parametrize("forbidden", [(), FORBIDDEN])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients_are_those_of_whole_rows(block: int, forbidden: tuple[int, ...], cap: float | None, biased: bool) -> None:
    hidden, head, bias = data()
    of = (hidden, head, bias) if biased else (hidden, head)
    how: dict[str, Any] = {"temperature": 0.7, "forbidden": forbidden, "cap": cap}
    weights = torch.linspace(-1, 2, M, dtype=torch.float64)
    ours = token_stats(hidden, head, stats(*FUNCTIONS), bias=bias if biased else None, block=block, **how)
    logp = dense(hidden, head, bias if biased else None, **how)
    theirs = [function(logp) for function in FUNCTIONS.values()]
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)
    total, wanted_total = (sum((k + 1) * (weights * value**2).sum() for k, value in enumerate(values)) for values in (ours, theirs))
    for mine, wanted in zip(torch.autograd.grad(total, of), torch.autograd.grad(wanted_total, of), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_only_what_is_asked_for_with_gradient_has_one() -> None:
    hidden, head, _ = data()
    found = token_stats(hidden, head, stats("entropy"), temperature=1.0, forbidden=())
    assert [value.requires_grad for value in found] == [False, False, True, False]
    alone = token_stats(hidden, head, {"entropy": TokenStat(entropy, True)}, temperature=1.0, forbidden=())
    ours, wanted = (torch.autograd.grad(value.sum(), (hidden, head)) for value in (found[2], alone[0]))
    assert all(torch.equal(one, other) for one, other in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_gradient_goes_only_where_something_trains(part: int) -> None:
    hidden, head, bias = (x.detach().requires_grad_(n == part) for n, x in enumerate(data()))
    (found,) = token_stats(hidden, head, {"entropy": TokenStat(entropy, True)}, temperature=1.0, forbidden=(), bias=bias)
    found.sum().backward()
    assert [x.grad is not None for x in (hidden, head, bias)] == [n == part for n in range(3)]


def test_rows_come_in_blocks_over_the_tokens_that_may_be_drawn() -> None:
    """Never more logits at once than the block holds."""
    seen: list[tuple[int, int]] = []

    def look(logp_MV: Tensor) -> Tensor:
        seen.append((logp_MV.shape[0], logp_MV.shape[1]))
        return logp_MV.amax(1)

    hidden, head, _ = data()
    (found,) = token_stats(hidden, head, {"look": TokenStat(look, True)}, temperature=1.0, forbidden=FORBIDDEN, block=3 * V)
    assert seen == [(3, V - 2), (3, V - 2), (1, V - 2)]
    found.sum().backward()
    assert seen[3:] == seen[:3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_bits_and_autocast(dtype: torch.dtype) -> None:
    """As near to the exact values as the products are, in float32 as log-probs are, and gradients in the type of the weights."""
    hidden, head, _ = data(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
        found = token_stats(hidden, head, stats(*FUNCTIONS), temperature=1.0, forbidden=FORBIDDEN, block=2 * V)
    logp = dense(hidden.double(), head.double(), None, temperature=1.0, forbidden=FORBIDDEN, cap=None)
    for mine, function in zip(found, FUNCTIONS.values(), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), function(logp), rtol=0, atol=5e-2)
    ours = torch.autograd.grad(sum(value.sum() for value in found), (hidden, head))
    theirs = torch.autograd.grad(sum(function(logp).sum() for function in FUNCTIONS.values()), (hidden, head))
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), wanted.double(), rtol=0, atol=0.1)


def test_no_rows() -> None:
    hidden, head, _ = data(m=0)
    found = token_stats(hidden, head, stats(*FUNCTIONS), temperature=1.0, forbidden=FORBIDDEN)
    assert [tuple(value.shape) for value in found] == [(0,)] * len(FUNCTIONS)
    for gradient in torch.autograd.grad(sum(value.sum() for value in found), (hidden, head)):
        assert not gradient.any()


def test_they_stand_behind_log_prob_and_entropy() -> None:
    hidden, head, _ = data()
    targets = torch.arange(M) % 2
    how = {"temperature": 0.8, "forbidden": FORBIDDEN}
    logp, plain, *more = read_tokens(hidden, head, targets, HeadOptions(**how, stats=stats()))
    assert len(more) == len(FUNCTIONS)
    torch.testing.assert_close(more[2], plain, rtol=0, atol=1e-12)
    for one, other in zip((logp, plain), read_tokens(hidden, head, targets, HeadOptions(**how)), strict=True):
        assert torch.equal(one, other), "what is asked beside them changes no bit of log-prob and entropy"


def test_a_function_that_does_not_fit_says_so() -> None:
    hidden, head, _ = data()
    with pytest.raises(ValueError, match=r"'mean': its function gave \(\) for 7 tokens"):
        token_stats(hidden, head, {"mean": TokenStat(lambda logp: logp.mean())}, temperature=1.0, forbidden=())
    likeliest = {"likeliest": TokenStat(lambda logp: logp.argmax(1).double(), True)}
    (found,) = token_stats(hidden, head, likeliest, temperature=1.0, forbidden=())
    with pytest.raises(ValueError, match="'likeliest': its function has no gradient"):
        found.sum().backward()
