"""algo.reward_shaping.length_envelope: the trapezoid of arXiv:2604.08539, eq. 9."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.reward_shaping.length_envelope import BANDS, envelope, length_envelope

NAN = float("nan")


def batch(lengths, tasks, names=("spatial_grounding", "captioning"), rewards=None):
    x = inputs([(r, 0, r == r) for r in rewards or [1.0] * len(lengths)], tasks=tasks)
    return dataclasses.replace(x, length_N=torch.tensor(lengths, dtype=torch.int64), tasks=names)


def shaped(x, **arguments):
    return length_envelope(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


@pytest.mark.parametrize(
    ("length", "expected"),
    [(9, 0), (10, 0), (15, 0.25), (20, 0.5), (30, 1), (50, 1), (70, 1), (75, 0.75), (85, 0.25), (90, 0), (91, 0)],
)
def test_length_envelope(length, expected):
    out = envelope(torch.tensor([length]), l_min=10, l_low=30, l_high=70, l_max=90)
    assert out.tolist() == [expected]
    assert shaped(batch([length], [0]), bands={"spatial_grounding": [10, 30, 70, 90]}) == pytest.approx([1 + 0.1 * expected])


def test_ramps_without_width_are_steps():
    out = envelope(torch.tensor([9, 10, 50, 70, 71]), l_min=10, l_low=10, l_high=70, l_max=70)
    assert out.tolist() == [0, 1, 1, 1, 0]


def test_each_task_has_its_own_band_and_others_none():
    # 4 tokens: half way up the ramp from 0 to 8; a task without a band keeps its reward
    x = batch([4, 4, 60, 320], [0, 1, 0, 0], rewards=[1.0, 1.0, 0.0, 0.5])
    assert shaped(x, weight=0.2) == pytest.approx([1.1, 1.0, 0.2, 0.5])


def test_default_bands_increase():
    assert all(len(band) == 4 and 0 <= band[0] <= band[1] < band[2] <= band[3] for band in BANDS.values())


@given(length=st.integers(0, 400), edges=st.lists(st.integers(0, 300), min_size=4, max_size=4).map(sorted))
def test_within_zero_and_one_and_full_on_the_plateau(length, edges):
    a, b, c, d = edges
    e = float(envelope(torch.tensor([length]), l_min=a, l_low=b, l_high=c, l_max=d))
    assert 0 <= e <= 1
    assert (e == 1) or not b <= length <= c
    assert e == 0 or a <= length <= d


def test_unjudged_stays_unjudged():
    assert str(shaped(batch([50], [0], rewards=[NAN]))) == "[nan]"


def test_what_is_missing_or_wrong_is_said():
    with pytest.raises(ValueError, match="needs tasks"):
        shaped(batch([4], [0], names=()))
    with pytest.raises(ValueError, match=r"band of task 'captioning' is \[0, 9, 8, 20\]"):
        shaped(batch([4], [0]), bands={"captioning": [0, 9, 8, 20]})
    with pytest.raises(ValueError, match="must be four lengths"):
        shaped(batch([4], [0]), bands={"captioning": [0, 9, 20]})
