"""Every registered quantity of the logits: one number per token, of each row alone, finite, and the same in blocks as from whole rows."""

from __future__ import annotations

import pytest
import torch

from vlmrl.algo.needs import TOKEN_STATS
from vlmrl.methods import registries
from vlmrl.policy.head import TokenStat
from vlmrl.policy.token_stats import token_stats

registries()
NAMES = list(TOKEN_STATS)
M, V, H = 9, 40, 6


def rows() -> torch.Tensor:
    """Log-probs of distributions from nearly even to nearly certain."""
    z = torch.randn(M, V, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (z * torch.logspace(-3, 3, M, dtype=torch.float64)[:, None]).log_softmax(1)


@pytest.mark.parametrize("name", NAMES)
def test_of_each_row_alone(name: str) -> None:
    function, logp = TOKEN_STATS[name], rows()
    before = logp.clone()
    found = function(logp)
    assert found.shape == (M,)
    assert found.isfinite().all()
    assert torch.equal(logp, before), "it changes what others read after it"
    torch.testing.assert_close(torch.cat([function(logp[n : n + 1]) for n in range(M)]), found, rtol=1e-12, atol=1e-12)
    shuffled = logp[:, torch.randperm(V, generator=torch.Generator().manual_seed(2))]
    torch.testing.assert_close(function(shuffled), found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_in_the_head_as_from_whole_rows(name: str) -> None:
    g = torch.Generator().manual_seed(3)
    hidden, head = torch.randn(M, H, generator=g), torch.randn(V, H, generator=g)
    allowed = [i for i in range(V) if i not in (0, 7)]
    wanted = TOKEN_STATS[name]((hidden.double() @ head.double().T / 0.8)[:, allowed].log_softmax(1))
    how = {"temperature": 0.8, "forbidden": (0, 7)}
    (found,) = token_stats(hidden, head, {name: TokenStat(TOKEN_STATS[name])}, block=2 * V, **how)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
