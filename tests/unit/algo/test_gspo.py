"""algo.loss.gspo."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs, metric, total
from vlmrl.algo.loss.gspo import gspo
from vlmrl.algo.loss.ppo_clip import ppo_clip
from vlmrl.algo.ratio import seq_mean, sequence_ratio

ANSWER = [(math.exp(0.03), 1.0), (math.exp(0.06), 1.0)]


def test_gspo_ratio_is_that_of_the_mean_log_ratio():
    assert sequence_ratio(loss_inputs([ANSWER]))[0].tolist() == pytest.approx([1.04603, 1.04603], abs=1e-5)


def test_gspo_is_clipped_at_its_default_width():
    assert coefficients(gspo, loss_inputs([ANSWER])) == [[0.0, 0.0]]
    assert metric(gspo, loss_inputs([ANSWER]), "clip_ratio/high") == (2, 2)


def test_gspo_slope_of_the_answer_when_nothing_is_clipped():
    x = loss_inputs([ANSWER])
    reduction = seq_mean(x.mask_BT)
    value = (gspo(x, clip_low=1.0, clip_high=9.0).loss_BT * reduction.weight_BT).sum() / reduction.count
    (grad,) = torch.autograd.grad(value, x.logp_BT)
    assert grad[0].tolist() == pytest.approx([-0.52301, -0.52301], abs=1e-5)


def test_gspo_clips_whole_answers_and_no_other():
    long = [(1.5, 1.0), (1.0, 1.0), (1.2, 1.0)]
    found = coefficients(gspo, loss_inputs([long, [(1.5, -1.0)]]), clip_low=0.2, clip_high=0.1)
    assert found == [[0.0, 0.0, 0.0], [pytest.approx(-1.5)]]


@given(ratio=st.floats(0.1, 5.0), adv=st.floats(-2, 2))
def test_gspo_of_single_tokens_is_ppo(ratio, adv):
    x = loss_inputs([[(ratio, adv)]])
    ours, ppo = (float(total(f(x, clip_low=0.2, clip_high=0.3), x).detach()) for f in (gspo, ppo_clip))
    assert ours == pytest.approx(ppo, rel=1e-12, abs=1e-12)


@given(order=st.permutations([0.7, 1.0, 1.4, 2.0]))
def test_gspo_ratio_ignores_the_order_of_tokens(order):
    value = sequence_ratio(loss_inputs([[(r, 1.0) for r in order]]))[0, 0]
    assert float(value.detach()) == pytest.approx(1.96**0.25, rel=1e-12)
