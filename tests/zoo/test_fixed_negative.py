"""Reweighting `fixed_negative`: unlikely tokens are pushed down, all by the same, whatever rewards and teachers say."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.fixed_negative import fixed_negative

P = torch.tensor([[0.9, 0.19, 0.05], [0.2, 0.1, 1.0]], dtype=torch.float64)


def test_unlikely_tokens_get_it_and_no_others() -> None:
    x = dataclasses.replace(inputs([(1.0, 0, True), (0.0, 0, True)]), length_N=torch.tensor([3, 2]), provided={"logp_NT": P.log()})
    adv_NT = torch.tensor([[5.0] * 3, [-5.0] * 3])
    assert fixed_negative(x, adv_NT).tolist() == [[0, -1, -1], [0, -1, 0]], "a probability at the bound is not below it"
    assert fixed_negative(x, adv_NT, size=0.5, below=0.1).tolist() == [[0, 0, -0.5], [0, 0, 0]]
    assert fixed_negative(x, adv_NT, below=1.0).tolist() == [[-1, -1, -1], [-1, -1, 0]], "all tokens of an answer, and none behind it"


def test_its_policy_gradient_lowers_the_chance_of_an_unlikely_token_and_without_a_bound_it_has_none() -> None:
    z = torch.tensor([2.0, 0.5, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
    logq = z.log_softmax(0)
    q = logq.detach().exp()
    for below in (0.2, 1.0):
        x = dataclasses.replace(
            inputs([(0.0, 0, True)] * 4), length_N=torch.ones(4, dtype=torch.int64), provided={"logp_NT": logq.detach()[:, None]}
        )
        adv_V = fixed_negative(x, torch.zeros(4, 1, dtype=torch.float64), below=below)[:, 0]
        (found,) = torch.autograd.grad(-(q * adv_V * logq).sum(), z, retain_graph=True)
        rare = torch.where(q < below, logq.exp(), torch.zeros_like(q)).sum() if below < 1 else logq.exp().sum()
        (expected,) = torch.autograd.grad(rare, z, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("arguments", "said"), [({"size": 0.0}, "size 0.0 > 0"), ({"below": 1.5}, "below 1.5 <= 1")])
def test_refusals(arguments: dict[str, float], said: str) -> None:
    x = dataclasses.replace(inputs([(0.0, 0, True)]), provided={"logp_NT": torch.zeros(1, 3)})
    with pytest.raises(ValueError, match=said):
        fixed_negative(x, torch.zeros(1, 3), **arguments)
