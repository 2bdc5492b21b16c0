"""algo.kl: expectations over a three-way categorical, enumerated, so without sampling noise."""

from __future__ import annotations

import math

import pytest
import torch

from vlmrl.algo.kl import k1, k2, k3, unbiased

P, Q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
KL = 0.025267
REVERSE = [0.0989, -0.0939, -0.0051]
FORWARD = [0.1, -0.1, 0.0]


def expected(estimator):
    """(E[value], E[gradient by the logits with the score term left out]) under P."""
    logits = P.log().requires_grad_()
    values = estimator(torch.log_softmax(logits, -1)[None], Q.log()[None])[0]
    (grad,) = torch.autograd.grad((P * values).sum(), logits)
    return float((P * values).sum().detach()), grad.tolist()


def test_k1():
    value, grad = expected(k1)
    assert value == pytest.approx(KL, abs=1e-6)
    assert grad == pytest.approx([0, 0, 0], abs=1e-12)


def test_k2():
    value, grad = expected(k2)
    assert value == pytest.approx(0.024862, abs=1e-6)
    assert grad == pytest.approx(REVERSE, abs=1e-4)


def test_k3():
    value, grad = expected(k3)
    assert value == pytest.approx(KL, abs=1e-6)
    assert grad == pytest.approx(FORWARD, abs=1e-12)


def test_k3_is_never_negative_and_at_most_ten():
    gap = torch.linspace(-80, 80, 641, dtype=torch.float64)[None]
    values = k3(gap, torch.zeros_like(gap))
    assert float(values.min()) == 0.0
    assert float(values.max()) == 10.0


@pytest.mark.parametrize(("estimator", "far"), [(k1, 20.0), (k2, 200.0)])
def test_the_gap_is_clamped_to_20(estimator, far):
    logp = torch.tensor([[80.0]], dtype=torch.float64)
    assert estimator(logp, torch.zeros_like(logp)).tolist() == [[far]]


def test_unbiased_from_samples_of_the_policy():
    value, grad = expected(unbiased)
    assert value == pytest.approx(KL, abs=1e-6)
    assert grad == pytest.approx(REVERSE, abs=1e-4)


def test_unbiased_from_samples_of_an_older_policy():
    old = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
    logits = P.log().requires_grad_()
    values = unbiased(torch.log_softmax(logits, -1)[None], Q.log()[None], old.log()[None])[0]
    (grad,) = torch.autograd.grad((old * values).sum(), logits)
    assert float((old * values).sum().detach()) == pytest.approx(KL, abs=1e-6)
    assert grad.tolist() == pytest.approx(REVERSE, abs=1e-4)


@pytest.mark.parametrize("gap", [-19.0, -3.0, -0.01, 0.0, 0.5, 12.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slope_of_unbiased_is_the_ratio_times_the_gap(gap, dtype):
    logp = torch.tensor([[-20.0]], dtype=dtype, requires_grad=True)
    value = unbiased(logp, logp.detach() - gap, logp.detach() - 0.25)
    (grad,) = torch.autograd.grad(value.sum(), logp)
    assert float(grad) == pytest.approx(math.exp(0.25) * gap, rel=1e-4, abs=1e-7)
    assert float(value.detach()) == pytest.approx(math.exp(0.25) * (math.exp(-gap) + gap - 1), rel=1e-4, abs=1e-7)
