"""algo.filter.overlong."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo import registries
from vlmrl.algo.filter.overlong import overlong

X = inputs([(1.0, 0, True), (0.0, 0, True), (1.0, 1, True), (0.0, 1, True), (0.0, 1, True)])
CUT = dataclasses.replace(X, truncated_N=torch.tensor([False, True, False, True, True]))


def test_overlong():
    keep, reason = overlong(CUT)
    assert keep.tolist() == [True, False, True, False, False]
    assert reason == "overlong"


def test_groups_with_too_many_cut_off_rows_go():
    assert overlong(CUT, max_share=0.5)[0].tolist() == [True, False, False, False, False]
    assert not overlong(CUT, max_share=0.4)[0].any()
    whole = dataclasses.replace(CUT, on_policy_N=torch.tensor([True, True, False, True, True]))
    assert overlong(whole, max_share=0.9)[0].tolist() == [True, False, False, False, False]


def test_the_field_that_it_needs_is_declared():
    assert registries.rollout_filter.get("overlong").extra["needs"] == ("truncated_N",)
    assert overlong(X)[0].all()


def test_max_share_is_checked():
    with pytest.raises(ValueError, match="max_share 2"):
        overlong(CUT, max_share=2)
