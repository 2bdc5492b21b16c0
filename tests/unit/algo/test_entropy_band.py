"""algo.constraint.entropy_band: slopes, value, and the gradient against autograd of the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrl.algo.constraint import PartialMean, constraint, merge
from vlmrl.algo.constraint.entropy_band import entropy_band, measure, penalty, term

TASKS = ("math", "ocr", "absent", "chart")
TASK_B = torch.tensor([0, 1, 0, 3])
MASK = torch.tensor([[True, True, False], [True, True, True], [True, False, False], [False, True, True]])


def logps(seed: int) -> torch.Tensor:
    scale = torch.tensor([[2.0], [0.05], [2.0], [0.8]], dtype=torch.float64)
    logp = -scale * torch.rand(MASK.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(MASK, logp, torch.full_like(logp, float("nan"))).requires_grad_()


def formula(logp: torch.Tensor, low: float, high: float, weight: float) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for index in range(len(TASKS)):
        tokens = -logp[index == TASK_B][MASK[index == TASK_B]]
        if tokens.numel():
            total = total + (tokens.mean() - high).clamp(min=0) + (low - tokens.mean()).clamp(min=0)
    return weight * total


def test_entropy_band():
    seen = {"high": PartialMean(7.0, 10), "low": PartialMean(1.0, 10), "in": PartialMean(4.0, 10), "none": PartialMean(0.0, 0)}
    assert entropy_band({}, seen) == {"high": 0.02, "low": -0.02, "in": 0.0}
    assert penalty(seen) == pytest.approx(0.02 * (0.1 + 0.1))
    assert entropy_band({"high": 5.0}, {}) == {}
    assert penalty({}) == 0.0
    assert constraint.get("entropy_band").extra["acts_on"] == "loss"


def test_the_border_has_no_slope():
    assert entropy_band({}, {"a": PartialMean(0.6, 1), "b": PartialMean(0.2, 1)}) == {"a": 0.0, "b": 0.0}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 50))
def test_gradient_of_the_term_is_that_of_the_formula(seed: int):
    logp = logps(seed)
    measured = measure(logp, MASK, TASK_B, TASKS)
    assert set(measured) == {"math", "ocr", "chart"}
    slopes = entropy_band({}, measured, weight=0.5)
    expected = formula(logp, 0.2, 0.6, 0.5)
    assert penalty(measured, weight=0.5) == pytest.approx(float(expected.detach()))
    out = term(logp, MASK, TASK_B, TASKS, slopes, measured)
    assert (out[~MASK] == 0).all()
    (got,) = torch.autograd.grad(out.sum(), logp)
    (wanted,) = torch.autograd.grad(expected, logp)
    torch.testing.assert_close(got, torch.where(MASK, wanted, torch.zeros_like(wanted)))
    # too surprised: gradient descent raises the log-probs; too sure: lowers them
    assert (got[0][MASK[0]] < 0).all() or measured["math"].mean <= 0.6
    assert (got[1] > 0).all()


def test_micro_batches_add_up():
    logp = logps(3)
    parts = [slice(0, 1), slice(1, 3), slice(3, 4)]
    measured = merge([measure(logp[p], MASK[p], TASK_B[p], TASKS) for p in parts])
    whole = measure(logp, MASK, TASK_B, TASKS)
    assert {k: (v.count, pytest.approx(v.total)) for k, v in whole.items()} == {k: (v.count, v.total) for k, v in measured.items()}
    slopes = entropy_band({}, measured)
    pieces = [term(logp[p], MASK[p], TASK_B[p], TASKS, slopes, measured) for p in parts]
    torch.testing.assert_close(torch.cat(pieces), term(logp, MASK, TASK_B, TASKS, slopes, measured))


def test_inside_the_band_nothing_pulls():
    logp = torch.full((2, 3), -0.4, dtype=torch.float64, requires_grad=True)
    mask, task = torch.ones(2, 3, dtype=torch.bool), torch.tensor([0, 1])
    measured = measure(logp, mask, task, TASKS)
    (got,) = torch.autograd.grad(term(logp, mask, task, TASKS, entropy_band({}, measured), measured).sum(), logp)
    assert (got == 0).all()
    assert penalty(measured) == 0.0


@pytest.mark.parametrize("bad", [{"low": 0.7}, {"weight": -0.1}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="constraint 'entropy_band'"):
        entropy_band({}, {}, **bad)
