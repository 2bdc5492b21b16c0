"""algo.advantage.spo: remembered values in place of groups."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.advantage.spo import spo

NAN = float("nan")


def single_stream(rewards, values):
    """One rollout per prompt."""
    x = inputs([(r, g, r == r) for g, r in enumerate(rewards)])
    return dataclasses.replace(x, baseline_N=torch.tensor(values, dtype=torch.float64))


def test_spo():
    # raw: 0.7222, -0.9, 0.1; mean -0.0259, sample deviation 0.8184
    out = spo(single_stream([1, 0, 1], [0.2777778, 0.9, 0.9]), epsilon=0.0)
    raw = [1 - 0.2777778, -0.9, 0.1]
    mean, std = statistics.mean(raw), statistics.stdev(raw)
    assert out.tolist() == pytest.approx([(r - mean) / std for r in raw])
    assert out.tolist() == pytest.approx([0.9142, -1.0681, 0.1539], abs=1e-3)


def test_a_prompt_never_seen_has_the_prior():
    a = spo(single_stream([1, 0, 1], [NAN, 0.9, NAN]))
    torch.testing.assert_close(a, spo(single_stream([1, 0, 1], [0.5, 0.9, 0.5])))
    torch.testing.assert_close(spo(single_stream([1, 0, 1], [NAN, 0.9, NAN]), prior=0.1), spo(single_stream([1, 0, 1], [0.1, 0.9, 0.1])))


def test_the_same_reward_is_worth_more_where_less_was_expected():
    out = spo(single_stream([1, 1, 0, 0], [0.1, 0.9, 0.1, 0.9]))
    assert out[0] > out[1] > out[2] > out[3]


def test_surprise_alone_counts():
    assert spo(single_stream([1, 0.5, 0.75], [0.75, 0.25, 0.5])).tolist() == [0.0] * 3
    assert spo(single_stream([1.0], [0.25])).tolist() == [0.0]


@given(rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0, NAN]), st.floats(0, 1)), min_size=1, max_size=9))
def test_the_batch_mean_is_zero_and_unjudged_rows_are_left_out(rows):
    out = spo(single_stream([r for r, _ in rows], [v for _, v in rows]))
    assert out.isfinite().all()
    assert abs(float(out.sum())) < 1e-6
    judged = [i for i, (r, _) in enumerate(rows) if r == r]
    if judged:
        alone = spo(single_stream([rows[i][0] for i in judged], [rows[i][1] for i in judged]))
        torch.testing.assert_close(out[judged], alone)
    assert all(out[i] == 0 for i in range(len(rows)) if i not in judged)


def test_the_value_is_needed():
    with pytest.raises(ValueError, match="'spo' needs baseline_N"):
        spo(inputs([(1.0, 0, True)]))
