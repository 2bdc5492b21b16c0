"""algo.behaviour: old log-probs that come with the row, and rows that are out of reach."""

from __future__ import annotations

import math

import pytest
import torch

from vlmrl.algo.behaviour import mean_log_ratio, mean_ratio, old_logprobs, out_of_reach

NAN = float("nan")


def test_given_log_probs_win_and_others_are_the_policys_own_without_gradient():
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    given = torch.tensor([[NAN, NAN], [-0.5, NAN]], dtype=torch.float64)
    out = old_logprobs(given, logp)
    assert out.tolist() == [[-1.0, -2.0], [-0.5, -4.0]]
    assert not out.requires_grad
    assert out.dtype == logp.dtype


def test_ratios_of_guided_rows():
    # the example of the method's notes: probability .4 under the guidance, .02 without it, so rho = .05
    logp = torch.tensor([[math.log(0.02), math.log(0.3), NAN], [math.log(0.4), 0.0, 0.0]])
    old = torch.tensor([[math.log(0.4), math.log(0.2), NAN], [math.log(0.4), 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert mean_ratio(logp, old, mask).tolist() == pytest.approx([(0.05 + 1.5) / 2, 1.0])
    assert mean_log_ratio(logp, old, mask).tolist() == pytest.approx([(math.log(0.05) + math.log(1.5)) / 2, 0.0])
    assert mean_ratio(logp, old, torch.zeros_like(mask)).tolist() == [0.0, 0.0]


def test_out_of_reach():
    old = torch.zeros(4, 2)
    logp = torch.tensor([[-2.0, -2.0], [-2.0, -2.1], [-2.0, -2.1], [-9.0, 0.0]])
    mask = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    given = torch.tensor([True, True, False, True])
    assert out_of_reach(logp, old, mask, given).tolist() == [False, True, False, True]
    assert out_of_reach(logp, old, mask, given, least=-5.0).tolist() == [False, False, False, True]


def test_without_guidance_every_ratio_is_one():
    logp = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 4, dtype=torch.bool)
    old = old_logprobs(torch.full((3, 4), NAN), logp)
    assert mean_ratio(logp, old, mask).tolist() == [1.0] * 3
    assert not out_of_reach(logp, old, mask, torch.ones(3, dtype=torch.bool)).any()
