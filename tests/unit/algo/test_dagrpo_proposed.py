"""Reweighting `dagrpo_proposed`: pairs that a judge can hardly tell apart."""

from __future__ import annotations

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.reweight.dagrpo_proposed import dagrpo_proposed

ADV = torch.tensor([1.0, 1.0, -1.0, -1.0])


def test_dagrpo_proposed_by_hand():
    # 0.85 and 0.8 are a close pair; 0.5 is 0.3 from its nearest
    x = inputs([(0.85, 0, True), (0.5, 0, True), (0.8, 0, True), (0.1, 0, True)])
    assert dagrpo_proposed(x, ADV, score="task").tolist() == [0.0, 1.0, 0.0, -1.0]
    assert torch.equal(dagrpo_proposed(x, ADV, score="task", threshold=0.0), ADV)


def test_dagrpo_proposed_pairs_within_groups_only():
    x = inputs([(0.85, 0, True), (0.5, 1, True), (0.8, 1, True), (0.1, 0, True)])
    assert torch.equal(dagrpo_proposed(x, ADV, score="task"), ADV)


def test_dagrpo_proposed_leaves_what_has_no_score():
    x = inputs([(0.85, 0, False), (0.5, 0, True), (0.8, 0, True), (0.1, 0, True)])
    assert torch.equal(dagrpo_proposed(x, ADV, score="task"), ADV)
    with pytest.raises(ValueError, match="no reward column"):
        dagrpo_proposed(x, ADV, score="other")
