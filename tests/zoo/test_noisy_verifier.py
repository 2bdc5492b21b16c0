"""algo.reward_shaping.noisy_verifier: expectations under the channel of arXiv:2510.00915."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.reward_shaping.noisy_verifier import corrected, noisy_verifier

RATES = {"false_positive": 0.1, "false_negative": 0.3}


def shaped(rewards, answers=None, **arguments):
    x = inputs([(r, 0, r == r) for r in rewards])
    if answers is not None:
        x = dataclasses.replace(x, answer_N=torch.tensor(answers))
    return noisy_verifier(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0]


def test_noisy_verifier():
    assert shaped([0, 1], **RATES).tolist() == pytest.approx([-1 / 6, 1.5])
    assert shaped([0, 1], correction="forward", **RATES).tolist() == pytest.approx([-0.7, 0.3])


def test_without_noise():
    assert shaped([0, 1]).tolist() == [0.0, 1.0]
    assert shaped([0, 1], correction="forward").tolist() == [-1.0, 0.0]


@given(rho0=st.floats(0, 0.45), rho1=st.floats(0, 0.45))
def test_expectations_given_the_truth(rho0, rho1):
    observed = torch.tensor([0.0, 1.0], dtype=torch.float64)
    back, forward = (corrected(observed, rho0, rho1, form) for form in ("backward", "forward"))
    given_wrong, given_right = torch.tensor([1 - rho0, rho0]).double(), torch.tensor([rho1, 1 - rho1]).double()
    assert float(back @ given_wrong) == pytest.approx(0, abs=1e-6)
    assert float(back @ given_right) == pytest.approx(1, abs=1e-6)
    assert float(forward @ given_wrong) == pytest.approx(-(1 - rho0 - rho1), abs=1e-6)
    assert float(forward @ given_right) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("correction", ["backward", "forward"])
def test_one_pair_of_rates_changes_nothing_under_a_z_score(correction):
    raw = [1.0, 0.0, 0.0, 1.0, 0.0]
    after = shaped(raw, correction=correction, **RATES).tolist()
    a, b = (grpo(inputs([(r, 0, True) for r in rewards]), epsilon=0.0) for rewards in (raw, after))
    torch.testing.assert_close(a, b)


def test_rates_of_their_own_for_unparsed_answers_do_change_it():
    out = shaped([0, 0, 1], answers=[-1, 0, 1], unparsed_false_negative=0.5, **RATES)
    assert out.tolist() == pytest.approx([-0.1 / 0.4, -1 / 6, 1.5])
    out = shaped([0, 1], answers=[-1, -1], unparsed_false_positive=0.0, **RATES)
    assert out.tolist() == pytest.approx([0, 1 / 0.7])


def test_unjudged_stays_unjudged():
    assert str(shaped([float("nan")], **RATES).tolist()) == "[nan]"


@pytest.mark.parametrize("rates", [{"false_positive": 0.5, "false_negative": 0.45}, {"false_positive": -0.1}, {"false_negative": 1.0}])
def test_a_verifier_without_signal_is_refused(rates):
    with pytest.raises(ValueError, match="carries no signal"):
        shaped([0, 1], **rates)


def test_rates_for_unparsed_answers_need_to_know_them():
    with pytest.raises(ValueError, match="needs answer_N"):
        shaped([0, 1], unparsed_false_negative=0.2)
