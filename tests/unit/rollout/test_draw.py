"""Draws without a running sum whose order nobody fixes: the same places as with one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.rollout import draw
from vlmrl.rollout.draw import first_over


def by_cumsum(p_NV: torch.Tensor, draws_N: torch.Tensor) -> torch.Tensor:
    cdf = p_NV.cumsum(-1)
    return torch.searchsorted(cdf, (draws_N * cdf[:, -1])[:, None], right=True)[:, 0]


@pytest.mark.parametrize("size", [1, 5, 64, 65, 4096, 4097, 151_936])
def test_places_equal_those_of_a_running_sum(size: int) -> None:
    g = torch.Generator().manual_seed(size)
    p = (torch.randn(64, size, generator=g, dtype=torch.float64) * 4).softmax(-1)
    p[:, torch.rand(size, generator=g) < 0.3] = 0.0
    p[:, size // 2] = 0.1
    draws = torch.rand(64, generator=g, dtype=torch.float64)
    draws[0] = 0.0
    assert torch.equal(first_over(p, draws * p.sum(-1)), by_cumsum(p, draws))


@given(
    numbers=st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 0.1, 0.3, 1.0]), min_size=1, max_size=300).filter(any),
    draw=st.sampled_from([0.0, 1e-12, 0.3, 0.999999, float(np.nextafter(1.0, 0.0))]),
)
def test_a_number_that_is_0_is_never_drawn(numbers: list[float], draw: float) -> None:
    p = torch.tensor([numbers], dtype=torch.float64)
    place = int(first_over(p, torch.tensor([draw], dtype=torch.float64) * p.sum()))
    assert numbers[place] > 0
    assert abs(sum(numbers[:place]) - min(sum(numbers[:place]), draw * sum(numbers))) < 1e-9
    assert sum(numbers[: place + 1]) >= draw * sum(numbers) - 1e-9


@given(exponents=st.lists(st.integers(-6, 0), min_size=1, max_size=300), mass=st.sampled_from([0.25, 0.5, 0.75, 0.9375]))
def test_the_nucleus_ends_where_a_running_sum_says(exponents: list[int], mass: float) -> None:
    """Powers of two: every sum is exact, so there is one right answer."""
    p = torch.tensor([[2.0**n for n in sorted(exponents, reverse=True)]]) / 2.0**9
    before = p.cumsum(-1) - p
    last = int(first_over(p, torch.tensor([mass * 0.5]), reached=True))
    kept = (before < mass * 0.5).sum() if float(p.sum()) >= mass * 0.5 else p.shape[1]
    assert last + 1 == int(kept)


def test_every_sum_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real vocabulary three levels, none of which sums more than `PIECE` numbers."""
    widths: list[int] = []
    real = draw._running
    monkeypatch.setattr(draw, "_running", lambda x: widths.append(x.shape[-1]) or real(x))
    first_over(torch.full((2, 151_936), 1 / 151_936, dtype=torch.float64), torch.tensor([0.2, 0.9], dtype=torch.float64))
    assert len(widths) == 3
    assert max(widths) == draw.PIECE
