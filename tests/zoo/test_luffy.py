"""algo.loss.luffy."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs, metric, total
from vlmrl.zoo.loss.luffy import luffy

TRACE = torch.tensor([True])
OWN = torch.tensor([False])


@pytest.mark.parametrize(("pi", "c"), [(0.01, 0.0826), (0.1, 0.25), (0.9, 0.09)])
def test_luffy_shapes_the_tokens_of_a_trace(pi, c):
    x = loss_inputs([[(1.0, 1.0), (1.0, -2.0)]], [[math.log(pi)] * 2], offpolicy_B=TRACE)
    assert coefficients(luffy, x)[0] == pytest.approx([c, -2 * c], abs=1e-4)


@given(pi=st.floats(1e-6, 1.0))
def test_luffy_peaks_where_the_probability_is_gamma(pi):
    x = loss_inputs([[(1.0, 1.0)]], [[math.log(pi)]], offpolicy_B=TRACE)
    assert coefficients(luffy, x, gamma=0.3)[0][0] <= 0.25 + 1e-12


def test_luffy_weighs_own_rows_by_their_ratio_without_a_clip_by_default():
    x = loss_inputs([[(5.0, 1.0), (0.1, -1.0)]], offpolicy_B=OWN)
    assert coefficients(luffy, x) == [pytest.approx([5.0, -0.1])]
    assert coefficients(luffy, x, clip_low=0.2, clip_high=0.2) == [[0.0, 0.0]]
    assert metric(luffy, x, "clip_ratio/high") == (0, 2)
    assert metric(luffy, x, "clip_ratio/high", clip_low=0.2, clip_high=0.2) == (1, 2)


def test_luffy_traces_enter_no_metric_of_own_rows():
    x = loss_inputs([[(9.0, 1.0), (9.0, 1.0)], [(1.0, 1.0)]], [[math.log(0.5)] * 2, [-1.0]], offpolicy_B=torch.tensor([True, False]))
    assert metric(luffy, x, "clip_ratio/high", clip_low=0.2, clip_high=0.2) == (0, 1)
    assert metric(luffy, x, "ratio/mean") == (1, 1)
    assert metric(luffy, x, "luffy/trace_probability") == (pytest.approx(1.0), 2)


def test_luffy_does_not_read_old_log_probs_of_traces():
    x = loss_inputs([[(1.0, 1.0)]], [[math.log(0.1)]], offpolicy_B=TRACE)
    spoilt = dataclasses.replace(x, logp_old_BT=torch.full_like(x.logp_old_BT, float("nan")))
    assert coefficients(luffy, spoilt)[0] == pytest.approx([0.25])
    assert float(total(luffy(spoilt), spoilt).detach()) == pytest.approx(-0.5)


def test_luffy_names_what_is_missing_or_wrong():
    x = loss_inputs([[(1.0, 1.0)]])
    with pytest.raises(ValueError, match=r"'luffy' needs LossInputs\.offpolicy_B"):
        luffy(x)
    with pytest.raises(ValueError, match="gamma is 0"):
        luffy(x, gamma=0.0)
    with pytest.raises(ValueError, match="both clip_low and clip_high"):
        luffy(x, clip_high=0.2)
